import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;

/**
 * A broker that is its own controller: {@code java -cp JARS KafkaBroker.java PROPERTIES}. It prints a line when it is
 * ready; the end of its input ends it.
 */
class KafkaBroker {
    public static void main(String[] arguments) {
        try {
            String[] format = {"format", "-t", Uuid.randomUuid().toString(), "-c", arguments[0]};
            if (StorageTool.execute(format, System.err) != 0) {
                throw new IllegalStateException("the folder of the broker cannot be formatted");
            }
            Properties properties = new Properties();
            properties.load(Files.newBufferedReader(Path.of(arguments[0])));
            KafkaRaftServer server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
            server.startup();
            System.out.println("ready");
            while (System.in.read() >= 0) {}
            server.shutdown();
        } catch (Exception problem) {
            problem.printStackTrace();
        } finally {
            System.exit(0); // Threads of the broker would hold the process.
        }
    }
}
