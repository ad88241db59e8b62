package pg

import (
	"fmt"
	"io/fs"
	"strings"
)

// QueryMap holds the queries of one package by name.
type QueryMap map[string]string

// Get returns the query of that name. It panics on an unknown one: call it when the package
// is initialised.
func (q QueryMap) Get(name string) string {
	sql, ok := q[name]
	if !ok {
		panic("pg: there is no query " + name)
	}
	return sql
}

// Queries reads the files queries/*.sql of files. Each query begins with a line `-- name: x`.
// It panics, at start, on a duplicate name, a query without a name, a name without a query,
// or if there is no file.
func Queries(files fs.FS) QueryMap {
	paths, err := fs.Glob(files, "queries/*.sql")
	if err != nil {
		panic(err) // the pattern is valid
	}
	if len(paths) == 0 {
		panic("pg: no files queries/*.sql")
	}
	all := QueryMap{}
	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			panic(fmt.Sprintf("pg: read %s: %v", path, err))
		}
		if err := parseQueries(string(text), all); err != nil {
			panic(fmt.Sprintf("pg: %s: %v", path, err))
		}
	}
	return all
}

// parseQueries adds the queries of one file to all.
func parseQueries(text string, all QueryMap) error {
	name, named := "", false
	var body strings.Builder
	end := func() error {
		sql := strings.TrimSuffix(strings.TrimSpace(body.String()), ";")
		body.Reset()
		switch {
		case !named && sql == "":
			return nil // text before the first name is a comment
		case !named:
			return fmt.Errorf("a query without a name: %.40q", sql)
		case sql == "":
			return fmt.Errorf("the name %s without a query", name)
		}
		if _, twice := all[name]; twice {
			return fmt.Errorf("the name %s is given twice", name)
		}
		all[name] = sql
		return nil
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "-- name:"); ok {
			if err := end(); err != nil {
				return err
			}
			name, named = strings.TrimSpace(rest), true
			if name == "" || strings.ContainsAny(name, " \t") {
				return fmt.Errorf("the name %q is not one word", name)
			}
			continue
		}
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "--") {
			continue // comments are not sent to the server
		}
		body.WriteString(line)
	}
	return end()
}
