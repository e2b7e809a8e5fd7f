import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * A checkpoint file manager that holds a query at one write of its logs, so that a test can stop its driver there.
 *
 * Confs: hold.entry (such as offsets/2), hold.moment (before: nothing is done yet; write: all but the last step is
 * done), hold.mark (this file appears when the query is held; it goes on when a file with .go after that name is there),
 * hold.files (the class of the file manager that does the work; empty for Spark's own choice).
 */
public final class HoldingFiles implements CheckpointFileManager {
  private static final String CLASS = "spark.sql.streaming.checkpointFileManagerClass";
  private final CheckpointFileManager files;
  private final String entry;
  private final String moment;
  private final String mark;

  public HoldingFiles(Path path, Configuration conf) {
    Configuration inner = new Configuration(conf);
    if (conf.get("hold.files", "").isEmpty()) {
      inner.unset(CLASS);
    } else {
      inner.set(CLASS, conf.get("hold.files"));
    }
    files = CheckpointFileManager.create(path, inner);
    entry = conf.get("hold.entry", "");
    moment = conf.get("hold.moment", "");
    mark = conf.get("hold.mark", "");
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    boolean holds = !entry.isEmpty() && path.toString().endsWith("/" + entry);
    if (holds && moment.equals("before")) {
      hold();
    }
    CancellableFSDataOutputStream output = files.createAtomic(path, overwriteIfPossible);
    return holds && moment.equals("write") ? new Held(output) : output;
  }

  private void hold() {
    try {
      Files.createFile(Paths.get(mark));
      while (!Files.exists(Paths.get(mark + ".go"))) {
        Thread.sleep(20);
      }
    } catch (IOException | InterruptedException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private final class Held extends CancellableFSDataOutputStream {
    private final CancellableFSDataOutputStream output;
    private boolean ended = false;

    Held(CancellableFSDataOutputStream output) {
      super(output);
      this.output = output;
    }

    @Override
    public void close() throws IOException {
      if (!ended) {
        ended = true;
        hold();
        output.close();
      }
    }

    @Override
    public void cancel() {
      ended = true;
      output.cancel();
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    return files.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return files.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    files.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return files.exists(path);
  }

  @Override
  public void delete(Path path) {
    files.delete(path);
  }

  @Override
  public boolean isLocal() {
    return files.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return files.createCheckpointDirectory();
  }
}
