import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A name node or a data node of HDFS: {@code java -cp JARS Hdfs.java name|data FOLDER ADDRESS ADDRESS_OF_NAME_NODE}. It
 * runs until it is killed.
 */
class Hdfs {
    public static void main(String[] arguments) throws Exception {
        String folder = new File(arguments[1]).getAbsolutePath(), address = arguments[2], names = arguments[3];
        Configuration conf = new Configuration();
        conf.set("fs.defaultFS", "hdfs://" + names + ":8020");
        conf.set("dfs.replication", "1");
        conf.set("dfs.blocksize", "1048576"); // so that a file soon has several
        conf.set("dfs.permissions.enabled", "false");
        if (arguments[0].equals("name")) {
            conf.set("dfs.namenode.name.dir", folder);
            conf.set("dfs.namenode.http-address", address + ":9870");
            conf.set("dfs.namenode.safemode.extension", "0");
            conf.set("dfs.namenode.safemode.threshold-pct", "0"); // what is lost is no reason to wait
            conf.set("dfs.namenode.datanode.registration.ip-hostname-check", "false");
            DefaultMetricsSystem.setMiniClusterMode(true); // format() registers metrics, too
            if (!new File(folder, "current").exists()) {
                NameNode.format(conf);
            }
            NameNode.createNameNode(new String[] {}, conf).join();
        } else {
            conf.set("dfs.datanode.data.dir", folder);
            conf.set("dfs.datanode.round-robin-volume-choosing-policy.additional-available-space", "0"); // small disks
            conf.set("dfs.datanode.address", address + ":9866");
            conf.set("dfs.datanode.ipc.address", address + ":9867");
            conf.set("dfs.datanode.http.address", address + ":9864");
            conf.set("dfs.datanode.hostname", address);
            DataNode.createDataNode(new String[] {}, conf);
            Thread.currentThread().join(); // for ever
        }
    }
}
