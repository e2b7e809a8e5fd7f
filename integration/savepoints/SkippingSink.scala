package pyspark_ckpt.tests

import java.nio.file.{Files, Path, Paths}

import scala.util.Try

import org.apache.spark.sql.{DataFrame, SQLContext}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.sources.StreamSinkProvider
import org.apache.spark.sql.streaming.OutputMode

/** A sink that keeps the rows of each batch in a file, and skips a batch up to the highest number that it has of a query.
  *
  * So do Delta's sink and others that no Python program can write.
  */
class SkippingSink extends StreamSinkProvider {
  override def createSink(
      context: SQLContext,
      parameters: Map[String, String],
      partitionColumns: Seq[String],
      mode: OutputMode): Sink = new Sink {
    override def addBatch(batch: Long, rows: DataFrame): Unit = {
      val query = context.sparkContext.getLocalProperty("sql.streaming.queryId")
      val folder = Files.createDirectories(Paths.get(parameters("path"), query))
      if (batch > newestIn(folder)) {
        val lines = rows.collect().map(_.mkString(",")).mkString("\n")
        val written: Path = Files.write(folder.resolve("rows"), lines.getBytes)
        Files.move(written, folder.resolve(batch.toString))
      }
    }

    private def newestIn(folder: Path): Long =
      folder.toFile.list.flatMap(name => Try(name.toLong).toOption).foldLeft(-1L)(math.max(_, _))
  }
}
