package pgtest

import (
	"strings"
	"testing"
)

// Slips that row-level security would hide, and queries that are right.
func TestAQueryThatDoesNotNameItsTenantIsFound(t *testing.T) {
	conn, tables := tenantTables(t)
	for _, c := range []struct{ name, sql, want string }{
		{"one row", "SELECT name FROM agents WHERE tenant_id = $1 AND id = $2", ""},
		{"one row without it", "SELECT name FROM agents WHERE id = $1", "agents"},
		{"a page without it", "SELECT id FROM agents WHERE id < $1 AND archived_at IS NULL ORDER BY id DESC LIMIT $2", "agents"},
		{"compared with something else", "SELECT name FROM agents WHERE tenant_id <> $1 AND id = $2", "agents"},
		{"compared with another column", "SELECT name FROM agents WHERE tenant_id = id", "agents"},
		{"a choice", "SELECT name FROM agents WHERE (tenant_id = $1 OR id = $2)", "agents"},
		{"a choice that can be left out", "SELECT name FROM agents WHERE ($1::uuid IS NULL OR tenant_id = $1)", "agents"},
		{"its name in a text", "SELECT id FROM agents WHERE name = 'tenant_id = $1' AND id = $1", "agents"},
		{"a tenant", "SELECT name FROM tenants WHERE id = $1", ""},
		{"all tenants", "SELECT name FROM tenants", "tenants"},
		{"an update", "UPDATE agents SET name = $2 WHERE id = $1", "agents"},
		{"a delete", "DELETE FROM sessions WHERE user_id = $1", "sessions"},
		{"an insert", "INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'a', 'a')", ""},
		{"an insert of what is read", "INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) SELECT tenant_id, 'x', id, 'x', now() FROM agents WHERE id = $1", "agents"},
		{"a join", "SELECT u.role FROM sessions s JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id WHERE s.tenant_id = $1 AND s.id = $2", ""},
		{"a join without it", "SELECT u.role FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.tenant_id = $1 AND s.id = $2", "users"},
		{"a join of rows of nobody", "SELECT u.role FROM sessions s JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id WHERE s.id = $1", "sessions users"},
		{"a left join without it", "SELECT t.id, m.id FROM threads t LEFT JOIN messages m ON m.thread_id = t.id WHERE t.tenant_id = $1", "messages"},
		{"a left join that binds one side", "SELECT t.id, m.id FROM threads t LEFT JOIN messages m ON m.tenant_id = t.tenant_id AND m.tenant_id = $1 AND m.thread_id = t.id", "threads"},
		{"a subquery without it", "SELECT id FROM agents a WHERE tenant_id = $1 AND EXISTS (SELECT FROM runs r WHERE r.agent_id = a.id)", "runs"},
		{"a subquery of a column", "SELECT id, (SELECT count(*) FROM messages m WHERE m.thread_id = t.id) FROM threads t WHERE tenant_id = $1", "messages"},
		{"a CTE without it", "WITH own AS MATERIALIZED (SELECT id FROM triggers WHERE agent_id = $2 FOR UPDATE) UPDATE triggers t SET enabled = false FROM own WHERE t.tenant_id = $1 AND t.id = own.id", "triggers"},
		{"a change by a CTE without it", "WITH own AS MATERIALIZED (SELECT id FROM triggers WHERE tenant_id = $1 AND agent_id = $2 FOR UPDATE) UPDATE triggers t SET enabled = false FROM own WHERE t.id = own.id", "triggers"},
		{"a recursion without it", "WITH RECURSIVE chain AS (SELECT id, parent_id FROM org_nodes WHERE tenant_id = $1 AND id = $2 UNION SELECT n.id, n.parent_id FROM chain c JOIN org_nodes n ON n.id = c.parent_id) SELECT id FROM chain", "org_nodes"},
		{"a union without it", "SELECT id FROM agents WHERE tenant_id = $1 UNION ALL SELECT id FROM threads", "threads"},
		{"arrays", "UPDATE threads t SET next_seq = 1 FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id) WHERE t.tenant_id = u.tenant_id AND t.id = u.id", ""},
		{"arrays without it", "UPDATE threads t SET next_seq = 1 FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id) WHERE t.id = u.id", "threads"},
		{"compared so that no index is used", "SELECT id FROM runs WHERE (tenant_id = $1) IS TRUE AND person_id = $2", ""},
		{"some tenants", "SELECT id FROM runs WHERE tenant_id = ANY ($1::uuid[]) AND id = $2", ""},
		{"without tables", "SELECT now()", ""},
		{"a shared table", "SELECT id FROM members WHERE id = $1", ""},
	} {
		l, err := crosses(t, conn, tables, c.sql)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		open := l.open()
		var got []string
		for _, o := range open {
			table, _, _ := strings.Cut(o, " ")
			got = append(got, table)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: found %v, want %q", c.name, open, c.want)
		}
	}
}

// A query that crosses tenants by one scan still names them in the others.
func TestAQueryThatCrossesTenantsNamesThemElsewhere(t *testing.T) {
	conn, tables := tenantTables(t)
	for sql, want := range map[string]int{
		"SELECT FROM runs r WHERE r.finished_at IS NULL AND EXISTS (SELECT FROM threads t WHERE t.tenant_id = r.tenant_id AND t.id = r.thread_id)": 0,
		"SELECT FROM runs r WHERE r.finished_at IS NULL AND EXISTS (SELECT FROM threads t WHERE t.id = r.thread_id)":                               1,
	} {
		l, err := crosses(t, conn, tables, sql)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.open("r"); len(got) != want {
			t.Errorf("%s: found %v", sql, got)
		}
	}
}
