package toolbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"weak"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// shops are tool servers of a tenant: each is a path of one address.
type shops struct {
	*searched
	url string

	mu    sync.Mutex                 // guards the fields below
	lists map[string]json.RawMessage // the tools by slug; a server without tools is down
	asked []string                   // slugs, for each list that was asked for
	met   map[string]bool            // slugs of the servers that had any request
	began func()                     // is called when a list is asked for
}

func newShops(t *testing.T) *shops {
	t.Helper()
	w := &shops{searched: newSearched(t), lists: map[string]json.RawMessage{}, met: map[string]bool{}}
	h := httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(h.Close)
	w.url = h.URL
	w.box.Guard = egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	w.box.Gateway = mcp.New(mcp.Config{Guard: w.box.Guard, Log: zerolog.Nop()})
	t.Cleanup(func() { w.box.Gateway.Close(context.WithoutCancel(t.Context())) })
	w.caller.Manifest = &agent.Manifest{}
	return w
}

func (w *shops) serve(out http.ResponseWriter, r *http.Request) {
	var asked struct {
		ID     json.RawMessage
		Method string
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&asked) != nil {
		out.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	slug := strings.TrimPrefix(r.URL.Path, "/")
	w.mu.Lock()
	w.met[slug] = true
	tools := w.lists[slug]
	began := w.began
	if asked.Method == "tools/list" || asked.Method == "initialize" && tools == nil {
		w.asked = append(w.asked, slug)
	}
	w.mu.Unlock()
	answer := `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"shop","version":"1"}}`
	switch {
	case tools == nil:
		out.WriteHeader(http.StatusServiceUnavailable)
		return
	case asked.Method == "initialize":
	case asked.Method == "tools/list":
		if began != nil {
			began()
		}
		answer = `{"tools":` + string(tools) + `}`
	default: // a notification
		out.WriteHeader(http.StatusAccepted)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`, asked.ID, answer)
}

// shop makes a server that anyone may call and the caller's manifest names. Its tools are what it
// offers, nil if it is down, and what it last listed, nil if it was never reached.
func (w *shops) shop(slug string, offers, last []string) id.ServerID {
	w.Helper()
	s := id.ServerID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind) VALUES ($1, $2, $3, 'x', 'http', $4, 'none')`, w.caller.Tenant, s, slug, w.url+"/"+slug)
	w.exec(`INSERT INTO tool_grants (tenant_id, id, source, mcp_server_id, tool_pattern, effect) VALUES ($1, $2, 'mcp', $3, '*', 'allow')`, w.caller.Tenant, id.NewAnywhere(), s)
	w.caller.Manifest.Tools.MCP = append(w.caller.Manifest.Tools.MCP, agent.MCPTools{Server: slug, Allow: []string{"*"}})
	if offers != nil {
		w.mu.Lock()
		w.lists[slug] = listOf(offers...)
		w.mu.Unlock()
	}
	if last != nil {
		w.exec(`UPDATE mcp_servers SET tools = $3, listed_at = now() WHERE tenant_id = $1 AND id = $2`, w.caller.Tenant, s, string(listOf(last...)))
	}
	return s
}

// listOf is a list of tools with these names, as a server sends it and as it is stored.
func listOf(names ...string) json.RawMessage {
	out := []byte{'['}
	for i, n := range names {
		if i > 0 {
			out = append(out, ',')
		}
		name, described, _ := strings.Cut(n, " ")
		out = fmt.Appendf(out, `{"source":"mcp","owner":"old","name":%q,"description":%q,"inputSchema":{"type":"object"},"schema":{"type":"object"}}`, name, described)
	}
	return append(out, ']')
}

func (w *shops) askedFor() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// Which lists count does not depend on which server answers first.
func TestTheFirstListsCount(t *testing.T) {
	t.Parallel()
	list := func(bytes int) []tool.Spec {
		one := tool.Spec{Source: tool.MCP, Name: "x", Schema: make([]byte, bytes/2-300)}
		return []tool.Spec{one, one}
	}
	for _, c := range []struct {
		lists []int // MiB
		want  int   // how many count
	}{{nil, 0}, {[]int{4, 4, 4, 3}, 4}, {[]int{4, 4, 4, 4, 1}, 4}, {[]int{1, 9, 9, 1, 1}, 2}, {[]int{17, 1}, 0}, {[]int{1, 1, 1, 20, 1, 1}, 3}} {
		var lists [][]tool.Spec
		for _, mib := range c.lists {
			lists = append(lists, list(mib<<20))
		}
		for range 50 {
			g := gathering{found: make([][]tool.Spec, len(c.lists)), end: len(c.lists)}
			for _, i := range rand.Perm(len(c.lists)) {
				g.add(i, lists[i])
			}
			if g.end != c.want {
				t.Fatalf("%v: %d lists count, want %d", c.lists, g.end, c.want)
			}
			bytes := 0
			for i, specs := range g.found {
				if (specs != nil) != (i < c.want) {
					t.Fatalf("%v: list %d: %d tools", c.lists, i, len(specs))
				}
				bytes += size(specs)
			}
			if bytes != g.bytes || bytes > maxLists {
				t.Fatalf("%v: %d bytes, counted as %d", c.lists, bytes, g.bytes)
			}
		}
	}
}

// A request asks 16 servers at a time.
func TestServersAreAskedAFewAtATime(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	const servers = 24
	for i := range servers {
		w.shop(fmt.Sprintf("s%02d", i), []string{"read"}, nil)
	}
	var mu sync.Mutex // guards open and most
	open, most := 0, 0
	full := make(chan int, 1) // how many servers were met when as many lists were open as may be
	closed := make(chan struct{})
	w.began = func() {
		mu.Lock()
		open++
		most = max(most, open)
		if open == listsAtOnce {
			w.mu.Lock()
			select {
			case full <- len(w.met):
				close(closed)
			default:
			}
			w.mu.Unlock()
		}
		mu.Unlock()
		<-closed
		mu.Lock()
		open--
		mu.Unlock()
	}
	offers, err := w.box.Offer(t.Context(), w.caller)
	if met := <-full; err != nil || len(offers) != servers || most != listsAtOnce || met != listsAtOnce {
		t.Errorf("%d tools, %d servers at a time, %d met at first, %v", len(offers), most, met, err)
	}
}

// A token that no last known list has is looked for in what 100 servers offer, beginning with those
// that a token names, each as its newest tenant-wide connection.
func TestKnownAsksAFewServers(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	w.shop("aa", []string{"new", "old"}, []string{"old"})
	w.exec(`INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind) SELECT $1, gen_random_uuid(), 'm' || lpad(n::text, 3, '0'), 'x', 'http', $2 || '/none', 'none' FROM generate_series(1, 130) n`, w.caller.Tenant, w.url)
	w.shop("zz", []string{"late"}, nil)
	known := func(tokens ...string) []bool {
		t.Helper()
		got, err := w.box.Known(t.Context(), w.caller.Tenant, tokens)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := known("aa.old", "old", "kb.search"); !slices.Equal(got, []bool{true, true, true}) || len(w.askedFor()) != 0 {
		t.Errorf("last known: %v, %d were asked", got, len(w.askedFor()))
	}
	if got := known("old", "zz.*", "new", "aa.none"); !slices.Equal(got, []bool{true, true, true, false}) {
		t.Errorf("%v", got)
	}
	if n := len(w.askedFor()); n < 2 || n > maxAsked {
		t.Errorf("%d servers were asked", n)
	}
	if got := known("late"); !slices.Equal(got, []bool{true}) { // it is known since it was asked
		t.Errorf("%v", got)
	}
}

// Pages of the tenant's tools join into one list in the order of qualified names, whatever begins
// alike: slugs, skills, builtin tools.
func TestPagesOfTools(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	want := []string{"builtin:kb.search"}
	for _, slug := range []string{"a", "a-b", "a0", "browser", "builtin", "c", "orders"} {
		w.shop(slug, nil, []string{"z", "a", "m.x"})
		want = append(want, slug+".z", slug+".a", slug+".m.x")
	}
	w.shop("empty", nil, []string{})
	w.shop("never", nil, nil)
	w.exec(`UPDATE mcp_servers SET enabled = false WHERE id = $1`, w.shop("off", nil, []string{"x"}))
	for i := range 20 {
		slug := fmt.Sprintf("s%02d", i)
		w.skill(slug, "always_before_run", "*")
		want = append(want, skillPrefix+slug+".run", skillPrefix+slug+".dry_run")
	}
	w.skill("try", "dry_run_only", "*")
	want = append(want, skillPrefix+"try.dry_run")
	slices.Sort(want)
	for _, limit := range []int{1, 2, 3, 7, 16, 17, 100} {
		var got []string
		after, more := "", true
		for more {
			var page []tool.Listed
			var err error
			if page, more, err = w.box.All(t.Context(), w.caller.Tenant, after, limit); err != nil || len(page) == 0 || len(page) > limit {
				t.Fatalf("by %d after %q: %d, %v", limit, after, len(page), err)
			}
			for _, l := range page {
				after = l.Qualified()
				got = append(got, after)
				if mcp := l.Source == tool.MCP; mcp != (l.Server != nil) || mcp != (l.At != nil) || l.Source == tool.BrowserSkill && (len(l.Schema) == 0 || l.Description == "") {
					t.Errorf("%s: %+v", after, l)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %q, want %q", limit, got, want)
		}
	}
	if page, more, err := w.box.All(t.Context(), w.caller.Tenant, "zz", 10); err != nil || more || len(page) != 0 {
		t.Errorf("behind the last: %v, %v, %v", page, more, err)
	}
}

// A toolbox keeps no list alive: the gateway counts the bytes of those that it keeps.
func TestSavedListsAreFreed(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	s := w.shop("shop", nil, nil)
	specs := []tool.Spec{{Source: tool.MCP, Owner: "shop", Name: "read"}}
	to := mcp.Target{Tenant: w.caller.Tenant, Server: s}
	saved := func() (at string) {
		if err := w.admin.QueryRow(t.Context(), `SELECT listed_at::text FROM mcp_servers WHERE id = $1`, s).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	w.box.remember(t.Context(), &to, specs)
	first := saved()
	if w.box.remember(t.Context(), &to, specs); saved() != first {
		t.Error("one list is saved twice")
	}
	if w.box.remember(t.Context(), &to, slices.Clone(specs)); saved() == first {
		t.Error("a new list is not saved")
	}
	list := make([]tool.Spec, 1, 64)
	list[0] = specs[0]
	w.box.remember(t.Context(), &to, list)
	alive := weak.Make(&list[0])
	list = nil
	for range 3 {
		runtime.GC()
	}
	if alive.Value() != nil {
		t.Error("the toolbox keeps a list alive")
	}
}

// A server is asked as the connection that its test uses.
func TestAskedServers(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	v := w.box.Tables.View(w.caller.Tenant)
	node := id.NodeID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO org_nodes (tenant_id, id, name) VALUES ($1, $2, 'n')`, w.caller.Tenant, node)
	err := w.box.Tables.Change(t.Context(), store.By{Tenant: w.caller.Tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		for _, c := range []struct {
			slug string
			kind tool.AuthKind
			of   []*id.NodeID // its connections, nil: tenant-wide
		}{{"none", tool.AuthNone, []*id.NodeID{nil}}, {"bare", tool.AuthBearer, nil}, {"noded", tool.AuthBearer, []*id.NodeID{&node}}, {"wide", tool.AuthAPIKey, []*id.NodeID{nil}},
			{"several", tool.AuthBearer, []*id.NodeID{nil, nil, &node}}, {"emptied", tool.AuthBearer, []*id.NodeID{nil, nil}}} {
			s, err := tx.CreateServer(ctx, &api.MCPServerCreate{Slug: c.slug, Name: "x", Transport: tool.HTTP, Endpoint: "https://t.example", AuthKind: c.kind})
			if err != nil {
				return nil, err
			}
			for _, n := range c.of {
				secret := "s"
				in := api.ConnectionCreate{MCPServerID: s.ID, Name: "x", Credentials: api.ConnectionCredentials{Token: &secret}, NodeID: n}
				if c.kind == tool.AuthAPIKey {
					in.Credentials = api.ConnectionCredentials{APIKey: &secret}
				}
				if _, err := tx.CreateConnection(ctx, &in); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE connections SET credentials = '' WHERE id = (SELECT c.id FROM connections c JOIN mcp_servers s ON s.id = c.mcp_server_id WHERE s.slug = 'emptied' ORDER BY c.id DESC LIMIT 1)`)
	w.exec(`INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind, enabled) VALUES ($1, gen_random_uuid(), 'off', 'x', 'http', 'https://t.example', 'none', false)`, w.caller.Tenant)
	all, err := v.AskedServers(t.Context(), []string{"wide", "several"}, 100)
	if err != nil || len(all) != 6 {
		t.Fatalf("%+v, %v", all, err)
	}
	var order []string
	connected := 0
	for _, s := range all {
		order = append(order, s.Slug)
		row, err := v.Server(t.Context(), s.ID)
		if err != nil || row.Slug != s.Slug || row.Transport != s.Transport || row.Endpoint != s.Endpoint || row.AuthKind != s.AuthKind || !row.UpdatedAt.Equal(s.UpdatedAt) {
			t.Errorf("%+v, %+v, %v", s, row, err)
		}
		want, err := w.box.tenantWide(t.Context(), w.caller.Tenant, row)
		if err != nil || (want == nil) != (s.Connection == nil) || want != nil && *want != *s.Connection {
			t.Errorf("%s: %v, want %v, %v", s.Slug, s.Connection, want, err)
		}
		if want != nil {
			connected++
		}
	}
	if !slices.Equal(order, []string{"several", "wide", "bare", "emptied", "noded", "none"}) || connected != 2 {
		t.Errorf("%q, %d with a connection", order, connected)
	}
	if few, err := v.AskedServers(t.Context(), nil, 2); err != nil || len(few) != 2 || few[0].Slug != "bare" {
		t.Errorf("%+v, %v", few, err)
	}
}

// The catalog is what servers last listed (open-parts.md, GET /v1/tools): a server that lists nothing any more has
// nothing there, and names of its former tools are unknown.
func TestAServerThatListsNothingAnyMore(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	s := w.shop("shop", []string{"read"}, nil)
	at := func() (at string) {
		if err := w.admin.QueryRow(t.Context(), `SELECT listed_at::text FROM mcp_servers WHERE id = $1`, s).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct {
		name string
		list []string
		want int
	}{{"one tool", []string{"read"}, 1}, {"none", []string{}, 0}, {"one tool again", []string{"read"}, 1}} {
		w.mu.Lock()
		w.lists["shop"] = listOf(c.list...)
		w.mu.Unlock()
		if specs, err := w.box.Test(t.Context(), w.caller.Tenant, s, nil); err != nil || len(specs) != c.want {
			t.Fatalf("%s: the test shows %v, %v", c.name, specs, err)
		}
		page, _, err := w.box.All(t.Context(), w.caller.Tenant, "", 10)
		page = slices.DeleteFunc(page, func(l tool.Listed) bool { return l.Source != tool.MCP })
		if err != nil || len(page) != c.want {
			t.Errorf("%s: the catalog has %v, %v", c.name, page, err)
		}
		known, err := w.box.Known(t.Context(), w.caller.Tenant, []string{"shop.read"})
		if err != nil || known[0] != (c.want == 1) {
			t.Errorf("%s: its name is known: %v, %v", c.name, known, err)
		}
	}

	// With another credential the server lists tools: these stay, although this one may see none.
	a, b := id.ConnectionID{UUID: id.NewAnywhere()}, id.ConnectionID{UUID: id.NewAnywhere()}
	may, mayNot := mcp.Target{Tenant: w.caller.Tenant, Server: s, Connection: &a}, mcp.Target{Tenant: w.caller.Tenant, Server: s, Connection: &b}
	specs := []tool.Spec{{Source: tool.MCP, Owner: "shop", Name: "read"}}
	w.box.remember(t.Context(), &may, specs)
	first := at()
	w.box.remember(t.Context(), &mayNot, nil)
	if at() != first {
		t.Error("an empty list replaces that of another credential")
	}
}
