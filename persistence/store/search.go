package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// small is a kind of objects of which tenants have few.
type small struct {
	kind          api.FoundKind
	table         string
	title, detail string // SQL
	found         string // SQL: the texts to search
	live          string // SQL: a condition
	admin         bool   // only admins find them
}

var smalls = []small{
	{api.FoundAgent, "agents", "name", "slug", "name, slug", "archived_at IS NULL", false},
	{api.FoundWorkflow, "workflows", "name", "slug", "name, slug", "archived_at IS NULL", false},
	{api.FoundBase, "knowledge_bases", "name", "''", "name", "deleted_at IS NULL", false},
	{api.FoundSkill, "browser_skills", "name", "slug", "name, slug", "true", false},
	{api.FoundTrigger, "triggers", "name", "kind", "name", "true", true},
	{api.FoundServer, "mcp_servers", "name", "slug", "name, slug", "true", true},
	{api.FoundConnected, "connections", "name", "''", "name", "true", true},
	{api.FoundPolicy, "approval_policies", "name", "tool_pattern", "name, tool_pattern", "true", true},
	{api.FoundWebhook, "webhooks", "url", "coalesce(description, '')", "url, description", "expires_at IS NULL", true},
	{api.FoundEmbedKey, "embed_keys", "name", "key_prefix", "name", "revoked_at IS NULL", true},
	{api.FoundProvider, "model_providers", "slug", "kind", "slug", "true", true},
	{api.FoundKey, "api_keys", "name", "prefix", "name", "revoked_at IS NULL", true},
	{api.FoundUser, "users", "email", "name", "email, name", "true", true},
	{api.FoundNode, "org_nodes", "name", "''", "name", "true", true},
}

func (s *small) query() string { return "search_newest/" + string(s.kind) }

// searches adds a query for each small kind, in place of their common form.
func searches(of pg.QueryMap) pg.QueryMap {
	of = maps.Clone(of)
	form := of["search_newest"]
	delete(of, "search_newest")
	for i := range smalls {
		s := &smalls[i]
		of[s.query()] = strings.NewReplacer("{kind}", string(s.kind), "{table}", s.table, "{title}", s.title, "{detail}", s.detail, "{found}", s.found, "{live}", s.live).Replace(form)
	}
	return of
}

// lastText is greater than the rest of every text that begins alike.
const lastText = "\U0010FFFF"

// withIndexes and restricted change the role of the rest of a batch. Under row-level security Postgres
// does not use an index of an expression, because its functions are not leakproof: it would read all
// runs of the tenant. The queries of large tables work as svc_system, and name their tenant.
const (
	withIndexes = "SELECT set_config('role', 'svc_system', true)"
	restricted  = "SELECT set_config('role', 'svc_api', true)"
)

type foundRow struct {
	api.Found
	Rank int
}

// Search returns the objects that the caller may find by an id, by the end of an id of at least 8
// digits, or by a text: at most api.MaxFound, the best first. Callers below admin find no objects
// of admins, and no e-mails.
func (v View) Search(ctx context.Context, by Approver, q string) ([]api.Found, error) {
	var whole *id.UUID
	var short []byte
	digits := strings.ToLower(strings.ReplaceAll(q, "-", ""))
	if u, err := id.Parse(q); err == nil {
		whole = &u
	} else if end, err := hex.DecodeString(digits[max(len(digits)-8, 0):]); err == nil && len(end) == 4 && len(digits) <= 32 {
		short = end
	}
	text := strings.ToLower(q)
	from := v.tenant.String() + text
	admin := by.Role.Satisfies(lifecycle.RoleAdmin)
	var kinds [][]foundRow
	err := v.planned().q.together(ctx, func(b *pgx.Batch) {
		ask := func(name string, args ...any) {
			at := len(kinds)
			kinds = append(kinds, nil)
			b.Queue(queries.Get(name), append([]any{v.tenant, api.MaxFound}, args...)...).Query(func(rows pgx.Rows) (err error) {
				kinds[at], err = pgx.CollectRows(rows, pgx.RowToStructByName[foundRow])
				return err
			})
		}
		for i := range smalls {
			if s := &smalls[i]; admin || !s.admin {
				ask(s.query(), whole, short, text)
			}
		}
		b.Queue(withIndexes)
		if whole != nil || short != nil {
			ask("search_runs", whole, short)
			ask("search_approvals", whole, short, by.roles(), by.Nodes)
			ask("search_threads", whole, short)
			ask("search_end_users", whole, short, admin)
		}
		if whole == nil {
			ask("search_titles", from, from+lastText)
			ask("search_people", from, from+lastText, admin)
			if admin {
				ask("search_mails", from, from+lastText)
			}
		}
		b.Queue(restricted)
	})
	if err != nil {
		return nil, err
	}
	rows := slices.Concat(kinds...)
	slices.SortStableFunc(rows, func(a, b foundRow) int { return cmp.Compare(a.Rank, b.Rank) })
	out := []api.Found{}
	seen := map[id.UUID]bool{}
	for _, r := range rows {
		if r.Rank == 0 && short != nil && !strings.HasSuffix(strings.ReplaceAll(r.ID.String(), "-", ""), digits) {
			continue // more digits were given than the index has
		}
		if !seen[r.ID] && len(out) < api.MaxFound {
			seen[r.ID] = true
			out = append(out, r.Found)
		}
	}
	return out, nil
}
