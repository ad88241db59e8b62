package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	index "agentsvc/persistence/knowledge"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/document"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// searched is a tenant with an agent, knowledge bases and a grant, over real tables.
type searched struct {
	*testing.T
	admin  *pgxpool.Pool
	chunks *index.Chunks
	index  *index.Index
	box    *Toolbox
	caller tool.Caller

	mu    sync.Mutex // guards the fields below
	asked []Query
	fails []error // of the next searches
}

func (w *searched) Search(ctx context.Context, q Query) ([]knowledge.Hit, error) {
	w.mu.Lock()
	w.asked = append(w.asked, q)
	var err error
	if len(w.fails) > 0 {
		err, w.fails = w.fails[0], w.fails[1:]
	}
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return w.index.Search(ctx, index.Query{Tenant: q.Tenant, Base: q.Base, Text: q.Text, TopK: q.TopK, Viewer: q.Viewer, MaxBytes: q.MaxBytes})
}

func newSearched(t *testing.T) *searched {
	t.Helper()
	db := pgtest.New(t)
	w := &searched{T: t, admin: db.System(t), chunks: index.NewChunks(db.System(t)), index: index.NewIndex(db.API(t), nil)}
	w.box = New(Config{Tables: store.New(db.API(t), vault.New(vault.NewSecret32([32]byte{1}))), Searcher: w, Timeout: 10 * time.Second, Log: zerolog.Nop()})
	w.caller = tool.Caller{Tenant: pgtest.Tenant(t, w.admin), Run: id.RunID{UUID: id.NewAnywhere()}, Manifest: &agent.Manifest{Tools: agent.Tools{Builtin: []string{agent.BuiltinKBSearch}}}}
	w.caller.Agent = pgtest.Published(t, w.admin, w.caller.Tenant, `{"model":{"provider":"simulated","name":"s"}}`)
	return w
}

func (w *searched) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.admin.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

func (w *searched) grant(pattern, effect string) {
	w.exec(`INSERT INTO tool_grants (tenant_id, id, source, tool_pattern, effect) VALUES ($1, $2, 'builtin', $3, $4)`, w.caller.Tenant, id.NewAnywhere(), pattern, effect)
}

// base makes a base of a tenant, which the agent's manifest names.
func (w *searched) base(of id.TenantID, name string) id.KnowledgeBaseID {
	w.Helper()
	b := id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name, description) VALUES ($1, $2, $3, 'about ' || $3)`, of, b, name)
	w.caller.Manifest.KnowledgeBases = append(w.caller.Manifest.KnowledgeBases, b.UUID)
	return b
}

func (w *searched) add(b id.KnowledgeBaseID, name string, acl []string, texts ...string) id.DocumentID {
	w.Helper()
	d := id.DocumentID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256, acl, owes, generation, shown, chunks, status)
		VALUES ($1, $2, $3, $4, 'text/plain', 1, $5, '', $6, false, 1, 1, $7, 'ready')`, w.caller.Tenant, d, b, name, id.NewAnywhere(), append([]string{}, acl...), len(texts))
	var number int64
	if err := w.admin.QueryRow(w.Context(), `SELECT number FROM knowledge_bases WHERE id = $1`, b).Scan(&number); err != nil {
		w.Fatal(err)
	}
	chunks := make([]document.Chunk, len(texts))
	for i, text := range texts {
		chunks[i] = document.Chunk{Position: i, Text: text, Tokens: 1}
	}
	if ok, err := w.chunks.Write(w.Context(), index.Target{Tenant: w.caller.Tenant, Document: d, Base: b, Number: number, Generation: 1, Content: 1}, chunks, nil); err != nil || !ok {
		w.Fatal(ok, err)
	}
	return d
}

func (w *searched) plan(args string) tool.Planned {
	w.Helper()
	plan, err := w.box.Plan(w.Context(), w.caller, 1, []model.Call{model.NewCall("c", "kb.search", args)})
	if err != nil {
		w.Fatal(err)
	}
	return plan[0]
}

// search plans and makes a call, which must not be refused.
func (w *searched) search(args string) tool.Outcome {
	w.Helper()
	p := w.plan(args)
	if p.Refused != nil {
		w.Fatalf("%s is refused: %s", args, p.Refused.Content)
	}
	return w.box.Call(w.Context(), w.caller, 1, p)
}

// names are the documents of an outcome, by base.
func names(out tool.Outcome) string {
	var o struct{ Results []knowledge.Found }
	if json.Unmarshal(out.Shown, &o) != nil {
		return string(out.Shown)
	}
	var all []string
	for _, f := range o.Results {
		var list []string
		for _, h := range f.Chunks {
			list = append(list, h.DocumentName)
		}
		all = append(all, strings.Join(list, " "))
	}
	return strings.Join(all, "|")
}

// open-parts.md, Tools: a builtin tool needs its name in tools.builtin and a grant with source
// builtin. Bases that do not exist offer nothing.
func TestWhenKBSearchIsOffered(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	offered := func() bool {
		list, err := w.box.Offer(t.Context(), w.caller)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(s model.ToolSpec) bool { return s.Name == "builtin:kb.search" })
	}
	if offered() {
		t.Error("offered without a grant and a base")
	}
	w.grant("kb.search", "allow")
	w.base(pgtest.Tenant(t, w.admin), "foreign")
	w.caller.Manifest.KnowledgeBases = append(w.caller.Manifest.KnowledgeBases, id.NewAnywhere())
	if offered() {
		t.Error("offered for bases that do not exist")
	}
	w.base(w.caller.Tenant, "Handbook")
	if !offered() {
		t.Error("not offered with all that it needs")
	}
	w.caller.Options.Tools = &[]string{"other"}
	if offered() {
		t.Error("offered to a message that leaves it out")
	}
	w.caller.Options.Tools = nil
	w.caller.Manifest.Tools.Builtin = nil
	if offered() {
		t.Error("offered without the manifest's name")
	}
	w.caller.Manifest.Tools.Builtin = []string{"kb.search"}
	w.grant("*", "deny")
	if offered() {
		t.Error("offered although it is denied")
	}
}

func TestArgumentsOfKBSearch(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("builtin:kb.search", "allow")
	b := w.base(w.caller.Tenant, "Handbook")
	other := id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'unlisted')`, w.caller.Tenant, other)
	long := strings.Repeat("é", knowledge.MaxQueryRunes)
	for args, want := range map[string]string{
		`{"query":"x"}`: "", `{"query":"` + long + `"}`: "", `{"query":"x","top_k":1}`: "", `{"query":"x","top_k":50.0}`: "",
		`{"query":"x","knowledge_base_id":"` + b.String() + `"}`: "",
		`{}`:                          "query: is required",
		`{"query":""}`:                "query: must have at least 1",
		`{"query":"` + long + `x"}`:   "query: must have at most 2000",
		`{"query":"x","top_k":0}`:     "top_k: must be at least 1",
		`{"query":"x","top_k":51}`:    "top_k: must be at most 50",
		`{"query":"x","top_k":1.5}`:   "top_k",
		`{"query":"x","end_user":""}`: "end_user: is not an argument",
		`{"query":"x","knowledge_base_id":"` + other.String() + `"}`: "knowledge_base_id: must be one of",
		`{"query":"x","knowledge_base_id":""}`:                       "knowledge_base_id: must be one of",
		`[]`:                                                         "no JSON object",
	} {
		p := w.plan(args)
		switch {
		case want == "" && (p.Refused != nil || !p.Retrieval || !p.Repeat || p.Tool != tool.KBSearch):
			t.Errorf("%.60s: %+v", args, p)
		case want != "" && (p.Refused == nil || !strings.Contains(p.Refused.Content, want)):
			t.Errorf("%.60s: %+v, want %s", args, p.Refused, want)
		}
	}
}

func TestWhatKBSearchFinds(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("kb.search", "allow")
	a, b := w.base(w.caller.Tenant, "A"), w.base(w.caller.Tenant, "B")
	w.base(w.caller.Tenant, "empty")
	d := w.add(a, "a1", nil, "Shoes may be returned within 30 days. \"<&>\"")
	w.add(a, "a2", nil, "shoes and many other words that make it a longer and so a worse text about something else")
	w.add(b, "b1", nil, "blue shoes")

	out := w.search(`{"query":"shoes"}`)
	if got := names(out); out.IsError || got != "a1 a2|b1|" && got != "a2 a1|b1|" {
		t.Errorf("%s", got)
	}
	if n := event.CountRetrieved(out.Shown); n != 3 {
		t.Errorf("%d frames", n)
	}
	if mark := "[" + knowledge.Cite(d, 0) + "]"; !strings.Contains(out.Content, `"cite":"`+mark+`"`) || !strings.Contains(out.Content, `\"<&>\"`) || !strings.Contains(out.Content, "Cite every statement") {
		t.Errorf("the model gets %s", out.Content)
	}
	// The best of each base comes before the second best of any.
	if got := names(w.search(`{"query":"shoes","top_k":2}`)); got != "a1|b1|" && got != "a2|b1|" {
		t.Errorf("top 2: %s", got)
	}
	if got := names(w.search(`{"query":"shoes","knowledge_base_id":"` + b.String() + `"}`)); got != "b1" {
		t.Errorf("one base: %s", got)
	}
	if out := w.search(`{"query":"zebra"}`); names(out) != "||" || out.IsError || !strings.Contains(out.Content, "Nothing was found") {
		t.Errorf("nothing: %+v", out)
	}
	for _, q := range w.asked {
		if *q.Run != w.caller.Run || *q.Agent != w.caller.Agent || q.Tenant != w.caller.Tenant {
			t.Errorf("searched as %+v", q)
		}
	}
	w.exec(`UPDATE knowledge_bases SET deleted_at = now() WHERE id = $1`, a)
	if got := names(w.search(`{"query":"shoes"}`)); got != "b1|" {
		t.Errorf("with a base deleted: %s", got)
	}
}

// open-parts.md, End users, ACLs: a run sees documents without an ACL and public ones, and those
// of its end user and its groups. Evidence sees the same.
func TestKBSearchSeesWhatItsEndUserSees(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("kb.search", "allow")
	b := w.base(w.caller.Tenant, "A")
	mine, other, gone := id.EndUserID{UUID: id.NewAnywhere()}, id.EndUserID{UUID: id.NewAnywhere()}, id.EndUserID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO end_users (tenant_id, id, external_id, attributes) VALUES ($1, $2, 'm', '{"groups":["staff"]}'), ($1, $3, 'o', '{}')`, w.caller.Tenant, mine, other)
	w.add(b, "all", nil, "canary")
	w.add(b, "public", []string{"public"}, "canary")
	w.add(b, "mine", []string{knowledge.EndUser(mine)}, "canary")
	w.add(b, "staff", []string{knowledge.Group("staff")}, "canary")
	for name, c := range map[string]struct {
		who  *id.EndUserID
		want string
	}{"nobody": {nil, "all public"}, "one of the staff": {&mine, "all mine public staff"}, "another": {&other, "all public"}, "one who is gone": {&gone, "all public"}} {
		w.caller.EndUser = c.who
		sorted := func(out tool.Outcome) string {
			return strings.Join(slices.Sorted(slices.Values(strings.Fields(names(out)))), " ")
		}
		if got := sorted(w.search(`{"query":"canary"}`)); got != c.want {
			t.Errorf("%s sees %s", name, got)
		}
		r, err := w.box.Retrieve(t.Context(), w.caller, "canary", 8)
		if got := sorted(r.Outcome); err != nil || got != c.want || r.Bases != 1 || r.Hits != len(strings.Fields(c.want)) {
			t.Errorf("%s gets as evidence %s, %+v, %v", name, got, r, err)
		}
	}
	// Groups are read at the call.
	w.exec(`UPDATE end_users SET attributes = '{}' WHERE id = $1`, mine)
	w.caller.EndUser = &mine
	if got := names(w.search(`{"query":"canary"}`)); strings.Contains(got, "staff") {
		t.Errorf("still of the staff: %s", got)
	}
}

func TestAPlannedSearchThatIsNotGrantedAnyMore(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("kb.search", "allow")
	b := w.base(w.caller.Tenant, "A")
	p := w.plan(`{"query":"x","knowledge_base_id":"` + b.String() + `"}`)
	c := w.base(w.caller.Tenant, "B")
	w.exec(`UPDATE knowledge_bases SET deleted_at = now() WHERE id = $1`, b)
	if out := w.box.Call(t.Context(), w.caller, 1, p); !out.IsError || !strings.Contains(out.Content, "none of the agent's knowledge bases") {
		t.Errorf("its base is gone: %s", out.Content)
	}
	w.exec(`UPDATE knowledge_bases SET deleted_at = now() WHERE id = $1`, c)
	if out := w.box.Call(t.Context(), w.caller, 1, p); !out.IsError || !strings.Contains(out.Content, "None of the agent's knowledge bases exists any more") {
		t.Errorf("all are gone: %s", out.Content)
	}
	w.exec(`DELETE FROM tool_grants`)
	if out := w.box.Call(t.Context(), w.caller, 1, p); !out.IsError || !strings.Contains(out.Content, tool.ErrNotGranted) {
		t.Errorf("the grant is gone: %s", out.Content)
	}
	if len(w.asked) > 0 {
		t.Errorf("searched %v", w.asked)
	}
}

func TestAGatedKBSearch(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("kb.search", "allow")
	w.base(w.caller.Tenant, "A")
	w.exec(`INSERT INTO approval_policies (tenant_id, id, name, tool_pattern, risk, required_approvals, approver_role, sla_minutes) VALUES ($1, $2, 'P', 'builtin:kb.search', 'low', 1, 'admin', 5)`,
		w.caller.Tenant, id.NewAnywhere())
	if p := w.plan(`{"query":"x"}`); p.Terms == nil || p.Approval == nil || !p.Retrieval || len(p.Schema) == 0 {
		t.Errorf("%+v", p)
	}
}

// An error of the search is a failed result in plain words. An unavailable database is waited for.
func TestASearchThatFails(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.grant("kb.search", "allow")
	w.add(w.base(w.caller.Tenant, "A"), "a", nil, "shoes")
	w.fails = []error{errors.New("secret of the database")}
	if out := w.search(`{"query":"shoes"}`); !out.IsError || out.Content != `{"error":"TOOL_FAILED","message":"The knowledge bases could not be searched."}` {
		t.Errorf("%s", out.Content)
	}
	w.fails = []error{fmt.Errorf("x: %w", store.ErrUnavailable), fmt.Errorf("x: %w", store.ErrUnavailable)}
	if out := w.search(`{"query":"shoes"}`); names(out) != "a" {
		t.Errorf("%s", out.Content)
	}
	w.fails = []error{errors.New("x")}
	if _, err := w.box.Retrieve(t.Context(), w.caller, "shoes", 8); err == nil {
		t.Error("evidence hides the error")
	}
	w.box.Searcher = nil
	if out := w.search(`{"query":"shoes"}`); !out.IsError {
		t.Errorf("%s", out.Content)
	}
}

func TestTheSizeOfASearchIsBounded(t *testing.T) {
	t.Parallel()
	hit := func(n int, score float64) knowledge.Hit {
		return knowledge.Hit{Text: strings.Repeat("é", n/2), Score: score}
	}
	for name, c := range map[string]struct {
		found []knowledge.Found
		want  string // how many chunks of each base
	}{
		"all fit":               {[]knowledge.Found{{Chunks: []knowledge.Hit{hit(maxFound/2, 1), hit(maxFound/2, .5)}}}, "[2]"},
		"one byte too many":     {[]knowledge.Found{{Chunks: []knowledge.Hit{hit(maxFound/2, 1), hit(maxFound/2+2, .5)}}}, "[1]"},
		"the first is too long": {[]knowledge.Found{{Chunks: []knowledge.Hit{hit(maxFound+10, 1), hit(2, .5)}}}, "[1]"},
		"of two bases":          {[]knowledge.Found{{Chunks: []knowledge.Hit{hit(maxFound, .5)}}, {Chunks: []knowledge.Hit{hit(4, .6)}}}, "[0 1]"},
	} {
		best(c.found, 50, 0)
		var kept []int
		for _, f := range c.found {
			kept = append(kept, len(f.Chunks))
			for _, h := range f.Chunks {
				if len(h.Text) > maxFound+len("…") {
					t.Errorf("%s: a text of %d bytes", name, len(h.Text))
				}
			}
		}
		if got := fmt.Sprint(kept); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// What is kept while bases are searched does not depend on which of them answers first.
func TestTheBestInAnyOrder(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		all := make([]knowledge.Found, 1+r.IntN(5))
		for i := range all {
			for range r.IntN(6) {
				all[i].Chunks = append(all[i].Chunks, knowledge.Hit{Text: strings.Repeat("é", 1+r.IntN(maxFound/4)), Score: float64(r.IntN(4))})
			}
		}
		topK := 1 + r.IntN(10)
		some := make([]knowledge.Found, len(all))
		for _, i := range r.Perm(len(all)) {
			some[i].Chunks = slices.Clone(all[i].Chunks)
			best(some, topK, 1)
		}
		best(some, topK, 0)
		if best(all, topK, 0); !reflect.DeepEqual(some, all) {
			t.Fatalf("other chunks are kept of %d bases, top %d", len(all), topK)
		}
	}
}

// heavy finds 50 chunks of 96 KiB in each base, and notes what is in memory at the last of some searches.
type heavy struct {
	mu   sync.Mutex // guards the fields below
	left int
	used uint64
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (h *heavy) Search(context.Context, Query) ([]knowledge.Hit, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left--; h.left == 0 {
		h.used = inUse()
	}
	hits := make([]knowledge.Hit, 50)
	for i := range hits {
		hits[i].Text = strings.Repeat("x", 96<<10)
	}
	return hits, nil
}

// A call that searches many bases keeps what it may return, not all that they found. It runs alone: it measures the memory of the process.
func TestASearchOfManyBasesKeepsTheBest(t *testing.T) {
	w := newSearched(t)
	w.grant("kb.search", "allow")
	for i := range 100 {
		w.base(w.caller.Tenant, fmt.Sprint("base", i))
	}
	h := &heavy{left: 100}
	w.box.Searcher = h
	before := inUse()
	out := w.search(`{"query":"x","top_k":50}`)
	if n := event.CountRetrieved(out.Shown); out.IsError || n != 100 || h.left != 0 {
		t.Errorf("%d bases answered, %d searches are left: %.80s", n, h.left, out.Content)
	}
	if kept := int64(h.used) - int64(before); kept > 32<<20 {
		t.Errorf("%d MiB are kept at the last search", kept>>20)
	}
}

func TestExplainKBSearch(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	explain := func(manifest string) string {
		a := pgtest.Published(t, w.admin, w.caller.Tenant, manifest)
		e, err := w.box.Explain(t.Context(), w.caller.Tenant, a, "kb.search")
		if err != nil {
			t.Fatal(err)
		}
		return string(e.Verdict) + ": " + e.Why
	}
	b := w.base(w.caller.Tenant, "A")
	named := `{"model":{"provider":"simulated","name":"s"},"tools":{"builtin":["kb.search"]},"knowledge_bases":["` + b.String() + `"]}`
	for manifest, want := range map[string]string{
		`{"model":{"provider":"simulated","name":"s"}}`:                                   "deny: the agent's manifest does not name",
		`{"model":{"provider":"simulated","name":"s"},"tools":{"builtin":["kb.search"]}}`: "deny: none of the knowledge bases",
		named: "deny: no grant allows",
	} {
		if got := explain(manifest); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", manifest, got)
		}
	}
	w.grant("kb.search", "allow")
	if got := explain(named); !strings.HasPrefix(got, "allow: ") {
		t.Errorf("%s", got)
	}
}
