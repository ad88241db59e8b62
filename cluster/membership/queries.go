package membership

import (
	_ "embed"
	"strings"
)

//go:embed queries/members.sql
var file string

var queries = parse(file)

// parse splits a query file at its `-- name:` markers.
func parse(text string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split("\n"+text, "\n-- name: ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		out[strings.TrimSpace(name)] = strings.TrimSpace(body)
	}
	return out
}

func query(name string) string {
	q, ok := queries[name]
	if !ok {
		panic("membership: no query " + name)
	}
	return q
}
