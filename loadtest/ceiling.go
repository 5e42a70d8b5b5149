// Package loadtest holds what all load tests compare with. The programs are in the folders below; README.md lists them.
package loadtest

import _ "embed" // the ceiling's two files

// Ceiling is the script of pgbench that the ratio "bare" is taken against.
//
//go:embed ceiling.sql
var Ceiling string

// CeilingTables makes its tables.
//
//go:embed ceiling_tables.sql
var CeilingTables string
