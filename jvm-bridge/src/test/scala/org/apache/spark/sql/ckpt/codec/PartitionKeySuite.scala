package org.apache.spark.sql.ckpt.codec

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection}
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  StateVariableType,
  TransformWithStatePartitionKeyExtractorFactory,
  TransformWithStateVariableInfo
}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

class PartitionKeySuite extends AnyFunSuite {
  private val schema = new StructType().add("name", StringType).add("amount", DoubleType).add("index", LongType)

  test("the hash gives the partition that Spark's HashPartitioning gives, for any number of partitions") {
    val columns = Seq(0, 1)
    val hash = PartitionKey.hash(schema, columns)
    val references = columns.map(i => BoundReference(i, schema(i).dataType, schema(i).nullable))
    val toRow = UnsafeProjection.create(schema)
    for (partitions <- Seq(1, 2, 7, 200); i <- 0 until 200) {
      val id = UnsafeProjection.create(Seq(HashPartitioning(references, partitions).partitionIdExpression))
      val name = if (i % 10 == 0) null else UTF8String.fromString(s"user $i")
      val row = toRow(InternalRow(name, i * 0.5 - 20, i.toLong))
      assert(Math.floorMod(hash(row), partitions) == id(row).getInt(0))
    }
  }

  test("negative zero hashes as zero does") {
    val hash = PartitionKey.hash(schema, Seq(1))
    val toRow = UnsafeProjection.create(schema)
    val name = UTF8String.fromString("x")
    assert(hash(toRow(InternalRow(name, -0.0, 1L)).copy()) == hash(toRow(InternalRow(name, 0.0, 1L)).copy()))
  }

  test("what makes a key unique is no part of the partition key") {
    assert(PartitionKey.columns("left-keyToNumValues", NoPrefixKeyStateEncoderSpec(schema)) == Seq(0, 1, 2))
    assert(PartitionKey.columns("left-keyWithIndexToValue", NoPrefixKeyStateEncoderSpec(schema)) == Seq(0, 1))
    assert(PartitionKey.columns("default", PrefixKeyScanStateEncoderSpec(schema, 2)) == Seq(0, 1))
    assert(PartitionKey.columns("left-keyWithTsToValues", TimestampAsPostfixKeyStateEncoderSpec(schema)) == Seq(0, 1))
    assert(PartitionKey.columns("left-tsWithKey", TimestampAsPrefixKeyStateEncoderSpec(schema)) == Seq(0, 1))
  }

  test("a key without columns hashes alike everywhere: such operators have one partition") {
    val hash = PartitionKey.hash(new StructType, Nil)
    assert(hash(UnsafeProjection.create(new StructType)(InternalRow.empty)) == 42)
  }

  private val userKey = new StructType().add("user", IntegerType)
  private val entryKey =
    new StructType().add("key", userKey).add("userKey", new StructType().add("word", StringType))

  private def expiring(element: StructType) =
    RangeKeyScanStateEncoderSpec(new StructType().add("expirationMs", LongType).add("elementKey", element), Seq(0))

  private def entry(user: Int, word: String): InternalRow =
    InternalRow(InternalRow(user), InternalRow(UTF8String.fromString(word)))

  for ((kind, element, rowOf) <- Seq(
      (StateVariableType.ValueState, userKey, (user: Int) => InternalRow(user)),
      (StateVariableType.MapState, entryKey, (user: Int) => entry(user, s"word $user"))))
    test(s"what expires is where Spark looks for it, for a $kind") {
      val spec = expiring(element)
      val theirs = TransformWithStatePartitionKeyExtractorFactory.create(
        StateStoreId.DEFAULT_STORE_NAME, "$ttl_it", spec.keySchema,
        TransformWithStateVariableInfo("it", kind, ttlEnabled = true))
      val schema = theirs.partitionKeySchema
      val (expected, actual) = (PartitionKey.hash(schema, schema.indices), PartitionKey.hash("$ttl_it", spec))
      val toRow = UnsafeProjection.create(spec.keySchema)
      for (user <- 0 until 20) {
        val row = toRow(InternalRow(user * 1000L, rowOf(user)))
        assert(actual(row) == expected(theirs.partitionKey(row)))
      }
    }
}
