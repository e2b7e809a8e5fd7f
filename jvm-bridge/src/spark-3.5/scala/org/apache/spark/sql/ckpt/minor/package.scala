package org.apache.spark.sql.ckpt

/** Code that differs between minor releases of Spark. The package has names of classes that have moved. */
package object minor extends MovedNames with RenamedNames with ErrorNotifierName
