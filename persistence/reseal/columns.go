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

// columns are all that hold sealed values. A test compares them with the schema.
var columns = []column{
	{"model_providers", "credentials", byID},
	{"connections", "credentials", byID},
	{"approvals", "frozen", byID},
	{"approvals", "edited", byID},
	{"run_steps", "sealed", byRunAndIdx},
	{"idempotency", "response", byDigest},
	{"webhooks", "secret", byID},
	{"triggers", "secret", byID},
	{"embed_keys", "identity_secret", byID},
}

// column is one column of sealed values.
type column struct {
	table, name string
	by          key
}

// key is a primary key behind its tenant. The place that a value is sealed to
// names its row by the same parts, joined by a slash.
type key []part

type part struct {
	name  string
	text  string // the part as the place writes it
	param string // the part back from that text, which is parameter %
	first string // text before every other one
}

var (
	byID        = key{uuidPart("id")}
	byRunAndIdx = key{uuidPart("run_id"), {"idx", "idx::text", "%::int", "0"}}
	byDigest    = key{{"digest", "encode(digest, 'hex')", "decode(%, 'hex')", ""}}
)

func uuidPart(name string) part {
	return part{name, name + "::text", "%::uuid", "00000000-0000-0000-0000-000000000000"}
}

// each joins what f says of every part.
func (k key) each(joint string, f func(part) string) string {
	all := make([]string, len(k))
	for i, p := range k {
		all[i] = f(p)
	}
	return strings.Join(all, joint)
}

// first is a row before every row.
func (k key) first() string { return k.each("/", func(p part) string { return p.first }) }

// args are the parameters for a row.
func (k key) args(row string) []any {
	var args []any
	for part := range strings.SplitSeq(row, "/") {
		args = append(args, part)
	}
	return args
}

// sql is a query for the column; the key's parameters follow the fixed ones.
func (c column) sql(query string, fixed int) string {
	n := fixed
	params := c.by.each(", ", func(p part) string {
		n++
		return strings.ReplaceAll(p.param, "%", "$"+strconv.Itoa(n))
	})
	return strings.NewReplacer(
		"{table}", c.table, "{column}", c.name,
		"{keys}", c.by.each(", ", func(p part) string { return p.name }),
		"{row}", c.by.each(" || '/' || ", func(p part) string { return p.text }),
		"{after}", params, "{own}", params,
	).Replace(queries.Get(query))
}

func (c column) pageSQL() string { return c.sql("page", 3) }
func (c column) swapSQL() string { return c.sql("swap", 3) }
