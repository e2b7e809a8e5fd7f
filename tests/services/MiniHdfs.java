import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A name node and a data node on 127.0.0.1: {@code java -cp JARS MiniHdfs.java FOLDER}. It prints its address when it is
 * ready, then obeys orders, a line each, and says each again when it is done. The end of its input ends it.
 */
class MiniHdfs {
    private static MiniDFSCluster.DataNodeProperties stopped;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // Nodes that stop have words of their own.
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", new File(arguments[0]).getAbsolutePath());
        conf.set("dfs.namenode.rpc-bind-host", "127.0.0.1");
        conf.set("dfs.namenode.http-bind-host", "127.0.0.1");
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        try (MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build()) {
            cluster.waitActive();
            answers.println("hdfs://127.0.0.1:" + cluster.getNameNodePort());
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                obey(order, cluster);
                answers.println(order);
            }
            cluster.shutdown(true);
        } catch (Exception problem) {
            problem.printStackTrace();
        } finally {
            System.exit(0); // Threads of the cluster would hold the process.
        }
    }

    private static void obey(String order, MiniDFSCluster cluster) throws Exception {
        switch (order) {
            case "enter safe mode" -> cluster.getFileSystem().setSafeMode(SafeModeAction.ENTER);
            case "leave safe mode" -> cluster.getFileSystem().setSafeMode(SafeModeAction.LEAVE);
            case "restart name node" -> cluster.restartNameNode(true);
            case "stop name node" -> cluster.shutdownNameNode(0);
            case "start name node" -> cluster.restartNameNode(0, true);
            case "stop data node" -> stopped = cluster.stopDataNode(0);
            case "start data node" -> cluster.restartDataNode(stopped, false); // its port may be taken by now
            default -> throw new IllegalArgumentException(order);
        }
    }
}
