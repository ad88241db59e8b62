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

// Column is a column of sealed values. Each value is sealed to the place that names
// its tenant, table, row and column. Kinds and tables without a kind list their own.
type Column struct {
	Table, Name string
	By          Key
}

// Key is a table's primary key behind its tenant. The place that a value is sealed to
// names its row by the same parts, joined by a slash.
type Key []Part

// Part is one column of a primary key.
type Part struct {
	Name  string
	Text  string // SQL: the part as the place writes it
	Param string // SQL: the part back from that text, which is parameter %
	First string // text that sorts before every other one
}

// ByID is the key of most tables: one UUID.
var ByID = Key{UUIDPart("id")}

// UUIDPart is a part of type uuid.
func UUIDPart(name string) Part {
	return Part{name, name + "::text", "%::uuid", "00000000-0000-0000-0000-000000000000"}
}

// IntPart is a part of type int that is never negative.
func IntPart(name string) Part { return Part{name, name + "::text", "%::int", "0"} }

// BytesPart is a part of type bytea, which places write in hexadecimal.
func BytesPart(name string) Part {
	return Part{name, "encode(" + name + ", 'hex')", "decode(%, 'hex')", ""}
}

// each joins what f returns for every part.
func (k Key) each(joint string, f func(Part) string) string {
	all := make([]string, len(k))
	for i, p := range k {
		all[i] = f(p)
	}
	return strings.Join(all, joint)
}

// first is a row before every row.
func (k Key) first() string { return k.each("/", func(p Part) string { return p.First }) }

// args are the parameters for a row.
func (k Key) args(row string) []any {
	var args []any
	for part := range strings.SplitSeq(row, "/") {
		args = append(args, part)
	}
	return args
}

// sql is a query for the column; the key's parameters follow the fixed ones.
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
