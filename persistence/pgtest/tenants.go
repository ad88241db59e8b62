package pgtest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Beyond says why a query crosses tenants, and with which scans, by their aliases in the
// plan. Its other scans must compare their tenant with that of these scans, or with a value
// given to the query.
type Beyond struct {
	Why   string
	Scans []string
}

// Tenants fails t for every query that reads or changes rows of a tenant table without
// comparing their tenant with a parameter, with the tenant of rows that are compared, or with
// a tenant given to the query. It inspects the server's plan under a login that row-level
// security does not bind, so that only the query's own predicates count. beyond lists the
// queries that cross tenants.
func Tenants(t *testing.T, queries map[string]string, beyond map[string]Beyond) {
	t.Helper()
	conn, tables := tenantTables(t)
	for name := range beyond {
		if _, ok := queries[name]; !ok {
			t.Errorf("there is no query %s that could cross tenants", name)
		}
	}
	looked := 0
	for name, sql := range queries {
		if !planned.MatchString(sql) {
			continue
		}
		looked++
		l, err := crosses(t, conn, tables, sql)
		if err != nil {
			t.Errorf("query %s: %v", name, err)
			continue
		}
		may := beyond[name]
		for _, scan := range may.Scans {
			if !slices.ContainsFunc(l.open(), func(o string) bool { return strings.HasSuffix(o, "("+scan+")") }) {
				t.Errorf("query %s names the tenant of %s, and is said not to", name, scan)
			}
		}
		if open := l.open(may.Scans...); len(open) > 0 {
			t.Errorf("query %s does not name the tenant of %s", name, strings.Join(open, ", "))
		}
		if len(may.Scans) > 0 && len(may.Why) < 10 {
			t.Errorf("query %s crosses tenants without a reason", name)
		}
	}
	if looked == 0 {
		t.Error("no query was checked")
	}
}

// planned matches the statements for which the server makes a plan.
var planned = regexp.MustCompile(`(?i)^(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

// tenantTables returns the tables whose rows belong to tenants, each with its tenant column,
// and a connection for explaining queries.
func tenantTables(t *testing.T) (*pgx.Conn, map[string]string) {
	t.Helper()
	pool := New(t).Admin(t)
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(c.Release)
	conn := c.Conn()
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	rows, err := conn.Query(t.Context(), "SELECT table_name::text FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'tenant_id'")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		t.Fatalf("pgtest: %d tables of tenants, %v", len(names), err)
	}
	tables := map[string]string{"tenants": "id"}
	for _, n := range names {
		tables[n] = "tenant_id"
	}
	return conn, tables
}

// crosses inspects the plan of a query.
func crosses(t *testing.T, conn *pgx.Conn, tables map[string]string, sql string) (*findings, error) {
	if _, err := conn.PgConn().Exec(t.Context(), "DEALLOCATE ALL; PREPARE looked AS "+sql).ReadAll(); err != nil {
		return nil, err
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'looked'", pgx.QueryExecModeSimpleProtocol).Scan(&n); err != nil {
		return nil, err
	}
	args := ""
	if n > 0 {
		args = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	var text string
	if err := conn.QueryRow(t.Context(), "EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE looked"+args, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		return nil, err
	}
	var top []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		return nil, err
	}
	l := &findings{tables: tables, scans: map[string]string{}}
	l.find(&top[0].Plan)
	l.read(&top[0].Plan)
	return l, nil
}

// plan is a node of a plan.
type plan struct {
	NodeType   string `json:"Node Type"`
	Relation   string `json:"Relation Name"`
	Alias      string
	JoinType   string `json:"Join Type"`
	IndexCond  string `json:"Index Cond"`
	Recheck    string `json:"Recheck Cond"`
	Filter     string
	JoinFilter string `json:"Join Filter"`
	HashCond   string `json:"Hash Cond"`
	MergeCond  string `json:"Merge Cond"`
	TIDCond    string `json:"TID Cond"`
	Parent     string `json:"Parent Relationship"`
	Plans      []plan
}

// findings holds what was read from a plan.
type findings struct {
	tables map[string]string // table to its tenant column
	scans  map[string]string // alias to table, for the scans of such tables
	rules  []rule
}

// rule says that the tenant of alias equals that of the alias as, or, if as is empty, a value
// given to the query.
type rule struct{ alias, as string }

// find adds the scans of a node and its children.
func (l *findings) find(p *plan) {
	if _, ok := l.tables[p.Relation]; ok && p.NodeType != "ModifyTable" {
		l.scans[p.Alias] = p.Relation
	}
	for i := range p.Plans {
		l.find(&p.Plans[i])
	}
}

// read adds the rules of a node and its children, and returns its aliases.
func (l *findings) read(p *plan) (aliases []string) {
	var outer, inner []string
	for i := range p.Plans {
		below := l.read(&p.Plans[i])
		switch p.Plans[i].Parent {
		case "Outer":
			outer = below
		case "Inner":
			inner = below
		}
		aliases = append(aliases, below...)
	}
	if p.Alias != "" && p.NodeType != "ModifyTable" {
		aliases = append(aliases, p.Alias)
		for _, cond := range []string{p.IndexCond, p.Recheck, p.Filter, p.TIDCond} {
			l.conditions(cond, func(alias string) bool { return alias == p.Alias })
		}
	}
	// The condition of an outer join restricts only the nullable side.
	binds := aliases
	switch p.JoinType {
	case "Left", "Anti":
		binds = inner
	case "Right", "Right Anti":
		binds = outer
	case "", "Inner", "Semi", "Right Semi":
	default:
		binds = nil
	}
	for _, cond := range []string{p.JoinFilter, p.HashCond, p.MergeCond} {
		l.conditions(cond, func(alias string) bool { return slices.Contains(binds, alias) })
	}
	return aliases
}

var (
	equal = regexp.MustCompile(`^(\S+) = (\S+)$`)
	given = regexp.MustCompile(`^(\$\d+|ANY \(\$\d+\)|\$\d+::uuid)$`)
	anyOf = regexp.MustCompile(`^(\S+) = ANY \(\$\d+\)$`)
)

// conditions adds the rules of a condition, for the aliases that it restricts.
func (l *findings) conditions(cond string, binds func(alias string) bool) {
	for _, term := range conjuncts(cond) {
		if m := anyOf.FindStringSubmatch(term); m != nil {
			term = m[1] + " = $0"
		}
		m := equal.FindStringSubmatch(term)
		if m == nil {
			continue
		}
		for _, pair := range [][2]string{{m[1], m[2]}, {m[2], m[1]}} {
			alias, column, ok := strings.Cut(pair[0], ".")
			if !ok || !binds(alias) || l.scans[alias] == "" || l.tables[l.scans[alias]] != column {
				continue
			}
			if given.MatchString(pair[1]) {
				l.rules = append(l.rules, rule{alias, ""})
			} else if as, other, ok := strings.Cut(pair[1], "."); ok && (l.scans[as] == "" || l.tables[l.scans[as]] == other) {
				l.rules = append(l.rules, rule{alias, as})
			}
		}
	}
}

// conjuncts returns the terms of a condition that must all hold, without parentheses and
// without IS TRUE.
func conjuncts(cond string) []string {
	cond = strings.TrimSpace(cond)
	for {
		if rest, ok := strings.CutSuffix(cond, " IS TRUE"); ok {
			cond = rest
		}
		if !strings.HasPrefix(cond, "(") || closing(cond) != len(cond)-1 {
			break
		}
		cond = strings.TrimSpace(cond[1 : len(cond)-1])
	}
	depth, quoted := 0, false
	for i := 0; i < len(cond); i++ {
		switch c := cond[i]; {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && strings.HasPrefix(cond[i:], " OR "):
			return nil
		case depth == 0 && strings.HasPrefix(cond[i:], " AND "):
			return append(conjuncts(cond[:i]), conjuncts(cond[i+len(" AND "):])...)
		}
	}
	return []string{cond}
}

// closing returns the index of the first parenthesis's end.
func closing(s string) int {
	depth, quoted := 0, false
	for i, c := range []byte(s) {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// open returns the scans whose tenant is neither given, nor equal to a given one, nor equal
// to that of the scans in all.
func (l *findings) open(all ...string) (found []string) {
	named := map[string]bool{}
	for _, alias := range all {
		named[alias] = true
	}
	for changed := true; changed; {
		changed = false
		for _, r := range l.rules {
			// An alias that is not a scan of such a table is an argument, or derived from
			// scans that are checked.
			if !named[r.alias] && (r.as == "" || named[r.as] || l.scans[r.as] == "") {
				named[r.alias], changed = true, true
			}
		}
	}
	for alias, table := range l.scans {
		if !named[alias] {
			found = append(found, fmt.Sprintf("%s (%s)", table, alias))
		}
	}
	slices.Sort(found)
	return found
}
