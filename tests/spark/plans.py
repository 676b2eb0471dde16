"""INTERPRETED: settings of a session whose plans run once or twice: compiling them costs more than it saves."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
