package org.apache.spark.sql.ckpt

/** What is not the same in all minor releases of Spark. The package has names of classes that have moved. */
package object minor extends MovedNames with RenamedNames with ErrorNotifierName
