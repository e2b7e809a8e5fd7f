import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;

/**
 * A resource manager and two node managers on 127.0.0.1: {@code java -cp CONF:JARS MiniYarn.java FOLDER}. The folder
 * {@code CONF} names the file system, and in {@code mark} a variable for all containers. It writes yarn-site.xml for
 * clients into {@code FOLDER/conf} and prints its address. Then it answers names of applications, a line each, with their
 * result and how many attempts they had. The end of its input ends it.
 */
class MiniYarn {
    private static final int NODES = 2;
    private static final Map<String, String> SETTINGS = Map.ofEntries(
        Map.entry("yarn.minicluster.yarn.nodemanager.resource.memory-mb", "4096"),
        Map.entry("yarn.nodemanager.resource.cpu-vcores", "8"),
        Map.entry("yarn.scheduler.minimum-allocation-mb", "128"),
        Map.entry("yarn.scheduler.capacity.root.queues", "default"),
        Map.entry("yarn.scheduler.capacity.root.default.capacity", "100"),
        Map.entry("yarn.scheduler.capacity.maximum-am-resource-percent", "1"),
        Map.entry("yarn.minicluster.control-resource-monitoring", "true"), // so the next four count
        Map.entry("yarn.nodemanager.resource.memory.enforced", "false"), // by cgroups, which would end a container
        Map.entry("yarn.nodemanager.resource-monitor.interval-ms", "300"),
        Map.entry("yarn.nodemanager.pmem-check-enabled", "true"),
        Map.entry("yarn.nodemanager.vmem-check-enabled", "false"),
        Map.entry("yarn.nodemanager.disk-health-checker.enable", "false"), // a full disk of the tests' machine
        Map.entry("yarn.nodemanager.delete.debug-delay-sec", "3600"), // logs stay until the test has read them
        Map.entry("yarn.resourcemanager.am.max-attempts", "3"),
        Map.entry("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", "200"),
        Map.entry("yarn.resourcemanager.bind-host", "127.0.0.1"),
        Map.entry("yarn.nodemanager.bind-host", "127.0.0.1"));

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // Nodes that stop have words of their own.
        File folder = new File(arguments[0]).getAbsoluteFile();
        System.setProperty("test.build.data", folder.getPath()); // the mini cluster's folders
        YarnConfiguration conf = new YarnConfiguration();
        SETTINGS.forEach(conf::set);
        conf.set("yarn.nodemanager.user-home-dir", folder.getPath());
        conf.set("yarn.nodemanager.admin-env", "JAVA_HOME=" + System.getProperty("java.home") + "," + conf.get("mark"));
        try (MiniYARNCluster cluster = new MiniYARNCluster("nodes", NODES, 1, 1)) {
            cluster.init(conf);
            cluster.start();
            try (OutputStream sink = new FileOutputStream(new File(folder, "conf/yarn-site.xml"))) {
                cluster.getConfig().writeXml(sink);
            }
            answers.println(cluster.getConfig().get(YarnConfiguration.RM_ADDRESS));
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                answers.println(report(ApplicationId.fromString(order), cluster));
            }
        } catch (Throwable problem) { // also of a class that is missing
            problem.printStackTrace();
        } finally {
            System.exit(0); // Threads of the cluster would hold the process.
        }
    }

    private static String report(ApplicationId id, MiniYARNCluster cluster) {
        RMApp found = cluster.getResourceManager().getRMContext().getRMApps().get(id);
        return found.getFinalApplicationStatus() + " " + found.getAppAttempts().size();
    }
}
