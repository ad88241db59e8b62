package migrate_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/deliverable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// shared are the tables that belong to no tenant, or are the tenants.
var shared = []string{"canary", "flushes", "members", "schema_migrations", "stats_mark", "tenants"}

// enums are the values a CHECK of one column or of a domain allows, by the
// constraint's name.
var enums = map[string][]string{
	"users_role_check":                texts(lifecycle.UserRoles),
	"agent_versions_status_check":     texts(lifecycle.VersionStatuses),
	"workflow_versions_status_check":  texts(lifecycle.VersionStatuses),
	"model_providers_kind_check":      {"openai", "anthropic"}, // open-parts.md, Agents, versions, manifest
	"message_role_check":              {"user", "assistant", "system"},
	"run_status_check":                texts(lifecycle.RunStatuses),
	"origin_kind_check":               texts(lifecycle.OriginKinds),
	"step_kind_check":                 texts(lifecycle.StepKinds),
	"step_status_check":               texts(lifecycle.StepStatuses),
	"usage_kind_check":                texts(lifecycle.UsageKinds),
	"tally_check":                     texts(lifecycle.Tallies),
	"approval_status_check":           texts(lifecycle.ApprovalStatuses),
	"risk_check":                      texts(lifecycle.Risks),
	"approver_role_check":             texts(lifecycle.ApproverRoles),
	"tool_source_check":               texts(tool.Sources),
	"mcp_servers_transport_check":     texts(tool.Transports),
	"mcp_servers_auth_kind_check":     texts(tool.AuthKinds),
	"tool_grants_effect_check":        texts(tool.Effects),
	"approvals_decision_check":        texts(lifecycle.Actions),
	"approvals_on_timeout_check":      {agent.TimeoutReject, agent.TimeoutCancelRun},
	"delivery_status_check":           texts(lifecycle.DeliveryStatuses),
	"triggers_kind_check":             texts(lifecycle.TriggerKinds),
	"kb_documents_status_check":       texts(lifecycle.DocumentStatuses),
	"knowledge_sources_kind_check":    texts(lifecycle.SourceKinds),
	"knowledge_sources_status_check":  texts(lifecycle.SourceStatuses),
	"artifacts_kind_check":            texts(deliverable.Kinds),
	"browser_skill_runs_mode_check":   texts(skill.Modes),
	"browser_skill_runs_status_check": texts(skill.Statuses),
	"browser_skill_runs_code_check":   texts(skill.Codes),
}

func texts[T ~string](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

type table struct {
	Name                           string
	HasTenant, NotNull, KeyedFirst bool
	Enabled, Forced                bool
	Owner                          string
}

func tables(t *testing.T, conn *pgx.Conn) []table {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT c.relname,
		       a.attnum IS NOT NULL, coalesce(a.attnotnull, false), coalesce(k.conkey[1] = a.attnum, false),
		       c.relrowsecurity, c.relforcerowsecurity, pg_get_userbyid(c.relowner)
		FROM pg_class c
		LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
		LEFT JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'p'
		WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
		ORDER BY c.relname`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEveryTableOfTenantsIsGuarded(t *testing.T) {
	conn := connect(t, pgtest.New(t).URL)
	guarded := 0
	for _, tb := range tables(t, conn) {
		if slices.Contains(shared, tb.Name) {
			continue
		}
		t.Run(tb.Name, func(t *testing.T) {
			if !tb.HasTenant {
				t.Fatal("it has no tenant_id and is not among the tables that need none")
			}
			if !tb.NotNull {
				t.Error("its tenant_id may be NULL")
			}
			if !tb.KeyedFirst {
				t.Error("its primary key does not begin with tenant_id")
			}
			wantPolicies(t, conn, tb, "(tenant_id = svc_tenant())")
		})
		guarded++
	}
	if guarded == 0 {
		t.Fatal("no table was looked at")
	}
	for _, tb := range tables(t, conn) {
		if tb.Name == "tenants" {
			wantPolicies(t, conn, tb, "(id = svc_tenant())")
		}
	}
}

func wantPolicies(t *testing.T, conn *pgx.Conn, tb table, qual string) {
	t.Helper()
	if !tb.Enabled || !tb.Forced {
		t.Errorf("%s: row-level security enabled %v, forced %v", tb.Name, tb.Enabled, tb.Forced)
	}
	if tb.Owner == string(pg.API) || tb.Owner == string(pg.System) {
		t.Errorf("%s belongs to %s, which could lift its policies", tb.Name, tb.Owner)
	}
	type policy struct {
		Roles            []string
		Permissive       string
		Cmd, Qual, Check string
	}
	rows, err := conn.Query(t.Context(), `SELECT roles::text[], permissive, cmd, coalesce(qual, ''), coalesce(with_check, '')
		FROM pg_policies WHERE schemaname = 'public' AND tablename = $1 ORDER BY roles::text`, tb.Name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[policy])
	if err != nil {
		t.Fatal(err)
	}
	byRole := map[string]policy{}
	for _, p := range got {
		if len(p.Roles) != 1 {
			t.Errorf("%s: a policy for %v, want one role each", tb.Name, p.Roles)
			continue
		}
		if _, twice := byRole[p.Roles[0]]; twice {
			t.Errorf("%s: two policies for %s widen each other", tb.Name, p.Roles[0])
		}
		byRole[p.Roles[0]] = p
	}
	for role, want := range map[pg.Role]string{pg.API: qual, pg.System: "true"} {
		p, ok := byRole[string(role)]
		if !ok {
			t.Errorf("%s has no policy for %s", tb.Name, role)
			continue
		}
		// Without a WITH CHECK, USING holds for new rows too.
		if p.Qual != want || p.Check != "" && p.Check != want || p.Cmd != "ALL" || p.Permissive != "PERMISSIVE" {
			t.Errorf("%s: the policy for %s is %+v, want %s", tb.Name, role, p, want)
		}
		delete(byRole, string(role))
	}
	if len(byRole) != 0 {
		t.Errorf("%s: policies for other roles: %v", tb.Name, slices.Collect(maps.Keys(byRole)))
	}
}

func TestAForeignKeyBetweenTablesOfTenantsNamesTheTenant(t *testing.T) {
	conn := connect(t, pgtest.New(t).URL)
	rows, err := conn.Query(t.Context(), `
		SELECT k.conrelid::regclass::text || '.' || k.conname
		FROM pg_constraint k
		WHERE k.contype = 'f' AND k.connamespace = 'public'::regnamespace AND k.confrelid <> 'tenants'::regclass
		  AND NOT EXISTS (
			SELECT FROM generate_subscripts(k.conkey, 1) i
			JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[i] AND a.attname = 'tenant_id'
			JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[i] AND b.attname = 'tenant_id')
		  AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = k.confrelid AND a.attname = 'tenant_id')`)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(bad) != 0 {
		t.Errorf("these could point at another tenant's row: %v", bad)
	}
}

var literal = regexp.MustCompile(`'([^']*)'::text`)

func TestTheEnumsInSQLAreThoseOfTheService(t *testing.T) {
	conn := connect(t, pgtest.New(t).URL)
	rows, err := conn.Query(t.Context(), `
		SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
		WHERE contype = 'c' AND connamespace = 'public'::regnamespace AND (contypid <> 0 OR cardinality(conkey) = 1)
		  AND pg_get_constraintdef(oid) ~ '^CHECK \(\(\(?\w+\)?(::text)? = ANY \(ARRAY\['`)
	if err != nil {
		t.Fatal(err)
	}
	type check struct{ Name, Def string }
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[check])
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range found {
		want, known := enums[c.Name]
		if !known {
			t.Errorf("%s is compared with nothing: %s", c.Name, c.Def)
			continue
		}
		seen[c.Name] = true
		var got []string
		for _, m := range literal.FindAllStringSubmatch(c.Def, -1) {
			got = append(got, m[1])
		}
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s allows %v, the service knows %v", c.Name, got, want)
		}
	}
	for name := range enums {
		if !seen[name] {
			t.Errorf("there is no CHECK %s", name)
		}
	}
}

func TestTheAPIRoleIsHeldToItsTenant(t *testing.T) {
	db := pgtest.New(t)
	mine, other := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	for _, tenant := range []id.TenantID{mine, other} {
		if _, err := db.System(t).Exec(t.Context(), `WITH t AS (INSERT INTO tenants (id, name) VALUES ($1, 'x') RETURNING id)
			INSERT INTO users (tenant_id, id, email, role) SELECT id, id, 'e@example.org', 'member' FROM t`, tenant); err != nil {
			t.Fatal(err)
		}
	}
	pool := db.Pool(t, pg.Options{Role: pg.API, MaxConns: 1})
	count := func() (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM users").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("without a tenant it sees %d users", n)
	}
	if _, err := pool.Exec(t.Context(), "SELECT set_config('svc.tenant', $1::text, false)", mine); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("with a tenant it sees %d users, want its one", n)
	}
	tag, err := pool.Exec(t.Context(), "UPDATE users SET name = 'taken' WHERE tenant_id = $1", other)
	if err != nil || tag.RowsAffected() != 0 {
		t.Errorf("it changed %d users of another tenant, %v", tag.RowsAffected(), err)
	}
	_, err = pool.Exec(t.Context(), "INSERT INTO users (tenant_id, id, email, role) VALUES ($1, $2, 'f@example.org', 'owner')",
		other, id.UserID{UUID: id.NewAnywhere()})
	if err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("an insert for another tenant: %v", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT FROM members"); err == nil {
		t.Error("it reads the cluster's members")
	}
}
