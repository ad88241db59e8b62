package reseal

import (
	"embed"
	"strconv"
	"strings"

	"agentsvc/persistence/pg"
)

//go:embed queries/*.sql
var files embed.FS

var queries = pg.Queries(files)

// Column is a column of sealed values. Each value is sealed to its place: tenant, table, row
// and column.
type Column struct {
	Table, Name string
	By          Key
}

// Key is a table's primary key after the tenant. The place of a value names its row by the
// same parts, joined by a slash.
type Key []Part

// Part is one column of a primary key.
type Part struct {
	Name  string
	Text  string // SQL: the part as text, as in a place
	Param string // SQL: the part from that text, which is the parameter %
	First string // the text that sorts first
}

// ByID is the key of most tables: one UUID.
var ByID = Key{UUIDPart("id")}

// UUIDPart returns a part of type uuid.
func UUIDPart(name string) Part {
	return Part{name, name + "::text", "%::uuid", "00000000-0000-0000-0000-000000000000"}
}

// IntPart returns a part of type int without negative values.
func IntPart(name string) Part { return Part{name, name + "::text", "%::int", "0"} }

// BytesPart returns a part of type bytea, which is hexadecimal in a place.
func BytesPart(name string) Part {
	return Part{name, "encode(" + name + ", 'hex')", "decode(%, 'hex')", ""}
}

// each joins the results of f for all parts.
func (k Key) each(joint string, f func(Part) string) string {
	all := make([]string, len(k))
	for i, p := range k {
		all[i] = f(p)
	}
	return strings.Join(all, joint)
}

// first returns a position before every row.
func (k Key) first() string { return k.each("/", func(p Part) string { return p.First }) }

// args returns the parameters for a row.
func (k Key) args(row string) []any {
	var args []any
	for part := range strings.SplitSeq(row, "/") {
		args = append(args, part)
	}
	return args
}

// sql returns a query for the column. The parameters of the key follow the fixed ones.
func (c Column) sql(query string, fixed int) string {
	n := fixed
	params := c.By.each(", ", func(p Part) string {
		n++
		return strings.ReplaceAll(p.Param, "%", "$"+strconv.Itoa(n))
	})
	return strings.NewReplacer(
		"{table}", c.Table, "{column}", c.Name,
		"{keys}", c.By.each(", ", func(p Part) string { return p.Name }),
		"{row}", c.By.each(" || '/' || ", func(p Part) string { return p.Text }),
		"{after}", params, "{own}", params,
	).Replace(queries.Get(query))
}

func (c Column) pageSQL() string { return c.sql("page", 3) }
func (c Column) swapSQL() string { return c.sql("swap", 3) }
