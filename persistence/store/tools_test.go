package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

func ptr[T any](v T) *T { return &v }

// node makes an org node.
func (w *world) node(t testing.TB, tenant id.TenantID, parent *id.NodeID) id.NodeID {
	t.Helper()
	n := id.NodeID{UUID: id.NewAnywhere()}
	if _, err := w.db.Admin(t).Exec(t.Context(), "INSERT INTO org_nodes (tenant_id, id, name, parent_id) VALUES ($1, $2, 'Node', $3)", tenant, n, parent); err != nil {
		t.Fatal(err)
	}
	return n
}

func (t *Tx) agent(ctx context.Context, node *id.NodeID) (id.AgentID, error) {
	a, err := t.CreateAgent(ctx, &api.AgentCreate{Name: "Agent", NodeID: node})
	if err != nil {
		return id.AgentID{}, err
	}
	return a.ID, nil
}

func (t *Tx) server(ctx context.Context, slug string) (id.ServerID, error) {
	s, err := t.CreateServer(ctx, &api.MCPServerCreate{Slug: slug, Name: slug, Transport: tool.HTTP, Endpoint: "https://t.example", AuthKind: tool.AuthBearer})
	if err != nil {
		return id.ServerID{}, err
	}
	return s.ID, nil
}

func (t *Tx) connection(ctx context.Context, s id.ServerID, node *id.NodeID) (id.ConnectionID, error) {
	c, err := t.CreateConnection(ctx, &api.ConnectionCreate{MCPServerID: s, Name: "C", Credentials: api.ConnectionCredentials{Token: ptr("tok")}, NodeID: node})
	if err != nil {
		return id.ConnectionID{}, err
	}
	return c.ID, nil
}

func (t *Tx) grant(ctx context.Context, s id.ServerID, g api.ToolGrantCreate) (id.GrantID, error) {
	g.Source, g.MCPServerID, g.ToolPattern, g.Effect = "mcp", &s, "*", tool.Allow
	row, err := t.CreateGrant(ctx, &g)
	if err != nil {
		return id.GrantID{}, err
	}
	return row.ID, nil
}

func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.node(t, w.a, nil)
	middle := w.node(t, w.a, &root)
	leaf := w.node(t, w.a, &middle)
	aside := w.node(t, w.a, &root)
	var (
		on, off, other          id.AgentID
		orders, disabled        id.ServerID
		wide, atMiddle, pinned  id.ConnectionID
		elsewhere               id.ConnectionID
		all, mine, nodes, atTop id.GrantID
		pins                    id.GrantID
		policy, own             id.PolicyID
	)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		var errs [20]error
		on, errs[0] = tx.agent(ctx, &leaf)
		off, errs[1] = tx.agent(ctx, nil)
		other, errs[2] = tx.agent(ctx, &aside)
		orders, errs[3] = tx.server(ctx, "orders")
		disabled, errs[4] = tx.server(ctx, "disabled")
		_, errs[5] = tx.UpdateServer(ctx, disabled, &api.MCPServerPatch{Enabled: ptr(false)})
		wide, errs[6] = tx.connection(ctx, orders, nil)
		atMiddle, errs[7] = tx.connection(ctx, orders, &middle)
		pinned, errs[8] = tx.connection(ctx, orders, &aside)
		elsewhere, errs[9] = tx.connection(ctx, orders, &aside)
		all, errs[10] = tx.grant(ctx, orders, api.ToolGrantCreate{})
		mine, errs[11] = tx.grant(ctx, orders, api.ToolGrantCreate{AgentID: &on})
		nodes, errs[12] = tx.grant(ctx, orders, api.ToolGrantCreate{NodeID: &leaf})
		atTop, errs[13] = tx.grant(ctx, orders, api.ToolGrantCreate{NodeID: &root})
		pins, errs[14] = tx.grant(ctx, orders, api.ToolGrantCreate{ConnectionID: &pinned})
		_, errs[15] = tx.grant(ctx, orders, api.ToolGrantCreate{AgentID: &other})
		_, errs[16] = tx.grant(ctx, orders, api.ToolGrantCreate{NodeID: &aside})
		for _, p := range []struct {
			into *id.PolicyID
			in   api.ApprovalPolicyCreate
		}{
			{&policy, api.ApprovalPolicyCreate{Name: "All", ToolPattern: "*"}},
			{&own, api.ApprovalPolicyCreate{Name: "Own", ToolPattern: "orders.*", Source: ptr(api.ToolSource("mcp")), AgentID: &on, Risk: ptr(lifecycle.RiskHigh),
				RequiredApprovals: ptr(2), ApproverRole: ptr(lifecycle.RoleManager), SLAMinutes: ptr(0.25), EscalateToRole: ptr(lifecycle.RoleOwner)}},
			{new(id.PolicyID), api.ApprovalPolicyCreate{Name: "Off", ToolPattern: "*", Enabled: ptr(false)}},
			{new(id.PolicyID), api.ApprovalPolicyCreate{Name: "Other", ToolPattern: "*", AgentID: &other}},
		} {
			row, err := tx.CreatePolicy(ctx, &p.in)
			if err != nil {
				return err
			}
			*p.into = row.ID
		}
		return errors.Join(errs[:]...)
	})
	access := func(a id.AgentID) *tool.Access {
		t.Helper()
		got, err := w.View(w.a).Access(t.Context(), a)
		if err != nil || got == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	got := access(on)
	if got.Agent != on || !slices.Equal(got.Chain, []id.NodeID{leaf, middle, root}) {
		t.Errorf("agent %v, chain %v", got.Agent, got.Chain)
	}
	ids := func(a *tool.Access) (out []string) {
		for _, s := range a.Servers {
			out = append(out, s.ID.String())
		}
		for _, c := range a.Connections {
			out = append(out, c.ID.String())
		}
		for _, g := range a.Grants {
			out = append(out, g.ID.String())
		}
		for _, p := range a.Policies {
			out = append(out, p.ID.String())
		}
		slices.Sort(out)
		return out
	}
	want := func(ids ...fmt.Stringer) (out []string) {
		for _, x := range ids {
			out = append(out, x.String())
		}
		slices.Sort(out)
		return out
	}
	if got, want := ids(got), want(orders, disabled, wide, atMiddle, pinned, all, mine, nodes, atTop, pins, policy, own); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got, want := ids(access(off)), want(orders, disabled, wide, pinned, all, pins, policy); !slices.Equal(got, want) {
		t.Errorf("an agent on no node:\ngot  %v\nwant %v", got, want)
	}
	if got := access(off).Chain; len(got) != 0 {
		t.Errorf("an agent on no node has the chain %v", got)
	}
	if got := ids(access(other)); !slices.Contains(got, elsewhere.String()) || slices.Contains(got, mine.String()) {
		t.Errorf("an agent on another node: %v", got)
	}

	// Every column has its value.
	for _, s := range got.Servers {
		if want := (tool.Server{ID: orders, Slug: "orders", Transport: tool.HTTP, Endpoint: "https://t.example", AuthKind: tool.AuthBearer, Enabled: true, UpdatedAt: s.UpdatedAt}); s.ID == orders && (s != want || s.UpdatedAt.IsZero()) {
			t.Errorf("server %+v", s)
		}
		if s.ID == disabled && s.Enabled {
			t.Error("a disabled server is enabled")
		}
	}
	for _, c := range got.Connections {
		if c.ID == atMiddle && (c.Server != orders || c.Node == nil || *c.Node != middle || c.CreatedAt.IsZero()) || c.ID == wide && c.Node != nil {
			t.Errorf("connection %+v", c)
		}
	}
	for _, g := range got.Grants {
		if g.Source != tool.MCP || g.Server == nil || *g.Server != orders || g.Skill != nil || g.Pattern != "*" || g.Effect != tool.Allow || g.CreatedAt.IsZero() ||
			(g.ID == mine) != (g.Agent != nil) || (g.ID == nodes || g.ID == atTop) != (g.Node != nil) || (g.ID == pins) != (g.Connection != nil) {
			t.Errorf("grant %+v", g)
		}
	}
	for _, p := range got.Policies {
		if p.ID == own && (p.Name != "Own" || p.Pattern != "orders.*" || p.Source != tool.MCP || p.Agent == nil || *p.Agent != on || p.Risk != lifecycle.RiskHigh || p.Required != 2 ||
			p.Role != lifecycle.RoleManager || p.SLAMinutes != 0.25 || p.Escalate != lifecycle.RoleOwner || p.CreatedAt.IsZero()) ||
			p.ID == policy && (p.Source != "" || p.Agent != nil || p.Escalate != "" || p.Required != 1 || p.Role != lifecycle.RoleAdmin || p.SLAMinutes != 1440) {
			t.Errorf("policy %+v", p)
		}
	}

	// An unknown agent, and another tenant's.
	for name, v := range map[string]View{"an unknown agent": w.View(w.a), "another tenant's agent": w.View(w.b)} {
		a := on
		if name == "an unknown agent" {
			a = id.AgentID{UUID: id.NewAnywhere()}
		}
		if got, err := v.Access(t.Context(), a); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// One connection, acquired once: the queries share a round trip.
	before := w.pool.Stat().AcquireCount()
	access(on)
	if n := w.pool.Stat().AcquireCount() - before; n != 1 {
		t.Errorf("read with %d connections", n)
	}
	// Runs of an archived agent continue.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, on)) })
	if got := access(on); len(got.Chain) != 3 || len(got.Grants) != 5 {
		t.Errorf("an archived agent: %+v", got)
	}
	// A change sees its own writes.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		if err := tx.DeleteGrant(ctx, all); err != nil {
			return err
		}
		got, err := tx.Access(ctx, off)
		if err == nil && len(got.Grants) != 1 {
			err = fmt.Errorf("%+v", got.Grants)
		}
		return err
	})
}

// Access is as of one moment: it sees all or none of a transaction.
func TestAccessIsOfOneMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var a id.AgentID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		a, err = tx.agent(ctx, nil)
		return err
	})
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			var s id.ServerID
			err := w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
				if s, err = tx.server(ctx, "orders"); err != nil {
					return err
				}
				c, err := tx.connection(ctx, s, nil)
				if err != nil {
					return err
				}
				_, err = tx.grant(ctx, s, api.ToolGrantCreate{ConnectionID: &c})
				return err
			})
			if err == nil {
				err = w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteServer(ctx, s) })
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	stop := sync.OnceFunc(func() { close(done); writer.Wait() })
	defer stop()
	seen := map[int]int{} // how often Access saw this number of servers
	for n := 0; n < 400 || (seen[0] == 0 || seen[1] == 0) && n < 20_000; n++ {
		got, err := w.View(w.a).Access(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Servers) != len(got.Connections) || len(got.Servers) != len(got.Grants) ||
			len(got.Servers) == 1 && (*got.Grants[0].Server != got.Servers[0].ID || *got.Grants[0].Connection != got.Connections[0].ID) {
			t.Fatalf("only part of the transaction: %+v", got)
		}
		seen[len(got.Servers)]++
	}
	stop()
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("numbers of servers seen %v: the test proves nothing", seen)
	}
}

func TestLastTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var orders, never, off id.ServerID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		var errs [3]error
		orders, errs[0] = tx.server(ctx, "orders")
		never, errs[1] = tx.server(ctx, "never")
		off, errs[2] = tx.server(ctx, "off")
		return errors.Join(errs[:]...)
	})
	before, err := w.View(w.a).Server(t.Context(), orders)
	if err != nil {
		t.Fatal(err)
	}
	rows := w.count(t, "SELECT count(*)::int FROM audit_log")
	specs := []tool.Spec{{Source: tool.MCP, Owner: "orders", Name: "orders.read", Description: "Liest \"Aufträge\".", Schema: json.RawMessage(`{"type":"object"}`), ReadOnly: true},
		{Source: tool.MCP, Owner: "orders", Name: "orders.refund", Idempotent: true}}
	for _, err := range []error{
		w.SaveTools(t.Context(), w.a, orders, specs),
		w.SaveTools(t.Context(), w.a, off, nil),
		w.SaveTools(t.Context(), w.b, never, specs), // another tenant's server matches no row
		w.SaveTools(t.Context(), w.a, id.ServerID{UUID: id.NewAnywhere()}, specs),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	last := func(tenant id.TenantID, s id.ServerID) *ServerTools {
		t.Helper()
		last, err := w.View(tenant).LastTools(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	if got := last(w.a, orders); got == nil || got.ID != orders || got.Slug != "orders" || got.At.IsZero() || fmt.Sprintf("%+v", got.Specs) != fmt.Sprintf("%+v", specs) {
		t.Errorf("%+v", got)
	}
	if got := last(w.a, off); got == nil || len(got.Specs) != 0 {
		t.Errorf("without tools: %+v", got)
	}
	if got := last(w.a, never); got != nil {
		t.Errorf("never reached: %+v", got)
	}
	if got := last(w.b, orders); got != nil {
		t.Errorf("another tenant's: %+v", got)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateServer(ctx, off, &api.MCPServerPatch{Enabled: ptr(false)}))
	})
	if got := last(w.a, off); got != nil {
		t.Errorf("a disabled one: %+v", got)
	}
	after, err := w.View(w.a).Server(t.Context(), orders)
	if err != nil || !after.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("updated %v, then %v, %v", before.UpdatedAt, after.UpdatedAt, err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log") - rows; n != 1 { // the patch
		t.Errorf("%d audit rows", n)
	}
	if n := w.count(t, "SELECT count(*)::int FROM mcp_servers WHERE listed_at IS NOT NULL"); n != 2 {
		t.Errorf("%d servers were listed", n)
	}
	// After a change of slug the tools are listed under the new one.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateServer(ctx, orders, &api.MCPServerPatch{Slug: ptr("sales")}))
	})
	if got := last(w.a, orders); len(got.Specs) != 2 || got.Specs[1].Qualified() != "sales.orders.refund" {
		t.Errorf("after a new slug: %+v", got)
	}
}

// A catalog has the enabled servers that listed tools in the order of qualified names, from any name
// on, and ends at its bound.
func TestCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slugs := []string{"a", "a-b", "a0", "ab", "off", "none", "z"}
	for _, slug := range slugs {
		var s id.ServerID
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			if s, err = tx.server(ctx, slug); err == nil && slug == "off" {
				_, err = tx.UpdateServer(ctx, s, &api.MCPServerPatch{Enabled: ptr(false)})
			}
			return err
		})
		specs := []tool.Spec{{Source: tool.MCP, Owner: slug, Name: "x", Description: strings.Repeat("d", 1000)}}
		if slug == "none" {
			specs = nil
		}
		if err := w.SaveTools(t.Context(), w.a, s, specs); err != nil {
			t.Fatal(err)
		}
	}
	read := func(v View, from string, limit int) (out []string, next string) {
		t.Helper()
		rows, err := v.Catalog(t.Context(), from, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range rows {
			if len(s.Specs) != 1 || s.Specs[0].Owner != s.Slug || s.At.IsZero() {
				t.Errorf("%+v", s)
			}
			out, next = append(out, s.Slug), s.After()
		}
		return out, next
	}
	all := []string{"a-b", "a", "a0", "ab", "z"} // a hyphen is before the dot that ends a slug
	for from, want := range map[string][]string{"": all, "a-b.": all, "a-b.x": all, "a-b/": all[1:], "a.": all[1:], "a.zzz": all[1:], "a/": all[2:], "a0.x": all[2:], "ab/": all[4:],
		"builtin:kb.search": all[4:], "z.y": all[4:], "z/": nil, "zz.a": nil} {
		if got, _ := read(w.View(w.a), from, 100); !slices.Equal(got, want) {
			t.Errorf("from %q: %v, want %v", from, got, want)
		}
	}
	var walked []string
	for next := ""; ; {
		got, after := read(w.View(w.a), next, 2)
		if len(got) == 0 {
			break
		}
		walked, next = append(walked, got...), after
	}
	if !slices.Equal(walked, all) {
		t.Errorf("in pages: %v", walked)
	}
	bound := Bound{Bytes: 2000}
	if got, _ := read(w.View(w.a).Bounded(&bound), "", 100); len(got) != 2 || !bound.Cut || bound.Bytes > 0 {
		t.Errorf("within its bound: %v, %+v", got, bound)
	}
	if got, _ := read(w.View(w.b), "", 100); len(got) != 0 {
		t.Errorf("another tenant's: %v", got)
	}
}

// service.md, Connection: encrypted at rest; a rotation replaces the old credential.
func TestConnectionsAreSealedToTheirPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var s id.ServerID
	var c, other id.ConnectionID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		var errs [3]error
		s, errs[0] = tx.server(ctx, "orders")
		c, errs[1] = tx.connection(ctx, s, nil)
		other, errs[2] = tx.connection(ctx, s, nil)
		return errors.Join(errs[:]...)
	})
	sealed := func() *SealedConnection {
		t.Helper()
		got, err := w.View(w.a).SealedConnection(t.Context(), c)
		if err != nil || got == nil || got.ID != c || got.Server != s || got.UpdatedAt.IsZero() {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	open := func(at vault.AAD) string {
		plain, err := w.vault.Open(at, sealed().Credentials)
		if err != nil {
			return err.Error()
		}
		return string(plain)
	}
	if all, err := w.View(w.a).SealedConnections(t.Context(), []id.ConnectionID{other, {UUID: id.NewAnywhere()}, c}); err != nil || len(all) != 2 ||
		!slices.ContainsFunc(all, func(s SealedConnection) bool {
			return s.ID == c && string(s.Credentials) == string(sealed().Credentials)
		}) {
		t.Errorf("several: %+v, %v", all, err)
	}
	if strings.Contains(string(sealed().Credentials), "tok") {
		t.Error("the credential is stored in plain")
	}
	if got := open(ConnectionAt(w.a, c)); got != "tok" {
		t.Errorf("opened as %q", got)
	}
	for what, at := range map[string]vault.AAD{"another tenant": ConnectionAt(w.b, c), "another connection": ConnectionAt(w.a, other)} {
		if got := open(at); got != vault.ErrOpen.Error() {
			t.Errorf("opens for %s as %q", what, got)
		}
	}
	old := sealed()
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateConnection(ctx, c, &api.ConnectionPatch{Name: ptr("New")}))
	})
	if got := sealed(); string(got.Credentials) != string(old.Credentials) {
		t.Error("a patch without credentials changed them")
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateConnection(ctx, c, &api.ConnectionPatch{Credentials: &api.ConnectionCredentials{Token: ptr("next")}}))
	})
	if got := open(ConnectionAt(w.a, c)); got != "next" || !sealed().UpdatedAt.After(old.UpdatedAt) {
		t.Errorf("after a rotation %q", got)
	}
	// The server's auth kind may change: the stored credential is a text.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.UpdateServer(ctx, s, &api.MCPServerPatch{AuthKind: ptr(tool.AuthAPIKey)})
		return errors.Join(err, second(tx.UpdateConnection(ctx, c, &api.ConnectionPatch{Credentials: &api.ConnectionCredentials{Value: ptr("a key")}})))
	})
	if got := open(ConnectionAt(w.a, c)); got != "a key" {
		t.Errorf("as an API key %q", got)
	}
	if got, err := w.View(w.b).SealedConnection(t.Context(), c); got != nil || err != nil {
		t.Errorf("another tenant's: %+v, %v", got, err)
	}
}

// No change of tools finds another tenant's id.
func TestForeignToolsAreNoRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var s id.ServerID
	var c id.ConnectionID
	var g id.GrantID
	var p id.PolicyID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		var errs [4]error
		s, errs[0] = tx.server(ctx, "orders")
		c, errs[1] = tx.connection(ctx, s, nil)
		g, errs[2] = tx.grant(ctx, s, api.ToolGrantCreate{})
		row, err := tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "P", ToolPattern: "*"})
		if err == nil {
			p = row.ID
		}
		errs[3] = err
		return errors.Join(errs[:]...)
	})
	v := w.View(w.b)
	do := func(fn func(ctx context.Context, tx *Tx) error) error { return w.try(t, w.b, fn) }
	for what, err := range map[string]error{
		"server":     second(v.Server(t.Context(), s)),
		"connection": second(v.Connection(t.Context(), c)),
		"grant":      second(v.Grant(t.Context(), g)),
		"policy":     second(v.Policy(t.Context(), p)),
		"update a server": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateServer(ctx, s, &api.MCPServerPatch{}))
		}),
		"delete a server": do(func(ctx context.Context, tx *Tx) error { return tx.DeleteServer(ctx, s) }),
		"update a connection": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateConnection(ctx, c, &api.ConnectionPatch{Credentials: &api.ConnectionCredentials{Token: ptr("x")}}))
		}),
		"delete a connection": do(func(ctx context.Context, tx *Tx) error { return tx.DeleteConnection(ctx, c) }),
		"update a grant": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateGrant(ctx, g, &api.ToolGrantPatch{}))
		}),
		"delete a grant": do(func(ctx context.Context, tx *Tx) error { return tx.DeleteGrant(ctx, g) }),
		"update a policy": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdatePolicy(ctx, p, &api.ApprovalPolicyPatch{}))
		}),
		"delete a policy": do(func(ctx context.Context, tx *Tx) error { return tx.DeletePolicy(ctx, p) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if wide, err := v.TenantWide(t.Context(), s); wide != nil || err != nil {
		t.Errorf("the tenant-wide connection of a foreign server: %v, %v", wide, err)
	}
	for _, list := range []error{
		none(v.Servers(t.Context(), id.ServerID{}, 25)), none(v.Connections(t.Context(), id.ConnectionID{}, 25)),
		none(v.Grants(t.Context(), id.GrantID{}, 25)), none(v.Policies(t.Context(), id.PolicyID{}, 25)),
	} {
		if list != nil {
			t.Error(list)
		}
	}
}

func none[T any](rows []T, err error) error {
	if err == nil && len(rows) > 0 {
		err = fmt.Errorf("%+v", rows)
	}
	return err
}

// An object that refers to an archived agent can still be changed and deleted, and nothing
// new can refer to it.
func TestReferencesToAnArchivedAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		a, err := tx.agent(ctx, nil)
		if err != nil {
			return err
		}
		s, err := tx.server(ctx, "orders")
		if err != nil {
			return err
		}
		g, err := tx.grant(ctx, s, api.ToolGrantCreate{AgentID: &a})
		if err != nil {
			return err
		}
		p, err := tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "P", ToolPattern: "*", AgentID: &a})
		if err != nil {
			return err
		}
		if _, err := tx.ArchiveAgent(ctx, a); err != nil {
			return err
		}
		if row, err := tx.UpdateGrant(ctx, g, &api.ToolGrantPatch{Effect: ptr(tool.Deny)}); err != nil || row.AgentID == nil || *row.AgentID != a {
			t.Errorf("change the grant: %+v, %v", row, err)
		}
		if row, err := tx.UpdatePolicy(ctx, p.ID, &api.ApprovalPolicyPatch{Enabled: ptr(false)}); err != nil || row.AgentID == nil || *row.AgentID != a {
			t.Errorf("change the policy: %+v, %v", row, err)
		}
		for what, err := range map[string]error{
			"name it in a grant":    second(tx.UpdateGrant(ctx, g, &api.ToolGrantPatch{AgentID: api.Some(a)})),
			"name it in a policy":   second(tx.UpdatePolicy(ctx, p.ID, &api.ApprovalPolicyPatch{AgentID: api.Some(a)})),
			"make a policy for it":  second(tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "P", ToolPattern: "*", AgentID: &a})),
			"grant something to it": second(tx.CreateGrant(ctx, &api.ToolGrantCreate{Source: "builtin", ToolPattern: "*", Effect: tool.Allow, AgentID: &a})),
		} {
			if !isCode(err, problem.CodeValidation) {
				t.Errorf("%s: %v", what, err)
			}
		}
		return errors.Join(tx.DeleteGrant(ctx, g), tx.DeletePolicy(ctx, p.ID))
	})
}

// security.md, Tenancy: without its WHERE a query still sees only its tenant.
func TestToolsAreSeenByTheirTenantOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tenant := range []id.TenantID{w.a, w.b} {
		w.change(t, tenant, func(ctx context.Context, tx *Tx) error {
			s, err := tx.server(ctx, "orders")
			if err != nil {
				return err
			}
			_, err = tx.connection(ctx, s, nil)
			_, grant := tx.grant(ctx, s, api.ToolGrantCreate{})
			_, policy := tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "P", ToolPattern: "*"})
			return errors.Join(err, grant, policy)
		})
	}
	for _, table := range []string{"mcp_servers", "connections", "tool_grants", "approval_policies"} {
		var n []int
		err := w.View(w.a).q.run(t.Context(), "SELECT count(*)::int FROM "+table, nil, func(rows pgx.Rows) (err error) {
			n, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		})
		if err != nil || !slices.Equal(n, []int{1}) {
			t.Errorf("%s: sees %v rows, %v", table, n, err)
		}
		err = w.View(w.a).q.together(t.Context(), func(b *pgx.Batch) {
			b.Queue("SELECT count(*)::int FROM " + table).QueryRow(func(row pgx.Row) error { return row.Scan(&n[0]) })
		})
		if err != nil || n[0] != 1 {
			t.Errorf("%s: sees %v rows in a batch, %v", table, n, err)
		}
	}
	// A read cannot write, and leaves no state on its connection.
	err := w.View(w.a).q.together(t.Context(), func(b *pgx.Batch) { b.Queue("UPDATE mcp_servers SET name = 'x'") })
	if err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a read wrote: %v", err)
	}
	var n int
	if err := w.pool.QueryRow(t.Context(), "SELECT count(*)::int FROM mcp_servers").Scan(&n); err != nil || n != 0 {
		t.Errorf("without a tenant it sees %d servers, %v", n, err)
	}
}

// Concurrent changes end in a valid state, and never in an internal error.
func TestToolsChangedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	allowed := func(err error) bool {
		return err == nil || isCode(err, problem.CodeNotFound) || isCode(err, problem.CodeInUse) || isCode(err, problem.CodeValidation)
	}
	for range 40 {
		var s id.ServerID
		var c, free id.ConnectionID
		var g id.GrantID
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
			var errs [4]error
			s, errs[0] = tx.server(ctx, "orders")
			c, errs[1] = tx.connection(ctx, s, nil)
			free, errs[2] = tx.connection(ctx, s, nil)
			g, errs[3] = tx.grant(ctx, s, api.ToolGrantCreate{ConnectionID: &c})
			return errors.Join(errs[:]...)
		})
		var wg sync.WaitGroup
		for what, fn := range map[string]func(ctx context.Context, tx *Tx) error{
			"delete the server":            func(ctx context.Context, tx *Tx) error { return tx.DeleteServer(ctx, s) },
			"delete the pinned connection": func(ctx context.Context, tx *Tx) error { return tx.DeleteConnection(ctx, c) },
			"delete the free connection":   func(ctx context.Context, tx *Tx) error { return tx.DeleteConnection(ctx, free) },
			"pin the free connection": func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateGrant(ctx, g, &api.ToolGrantPatch{ConnectionID: api.Some(free)}))
			},
			"grant": func(ctx context.Context, tx *Tx) error {
				_, err := tx.grant(ctx, s, api.ToolGrantCreate{ConnectionID: &free})
				return err
			},
			"connect": func(ctx context.Context, tx *Tx) error {
				_, err := tx.connection(ctx, s, nil)
				return err
			},
			"rotate": func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateConnection(ctx, c, &api.ConnectionPatch{Credentials: &api.ConnectionCredentials{Token: ptr("x")}}))
			},
			"rename the server": func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateServer(ctx, s, &api.MCPServerPatch{Name: ptr("x")}))
			},
		} {
			wg.Go(func() {
				if err := w.try(t, w.a, fn); !allowed(err) {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
		if n := w.count(t, "SELECT (SELECT count(*) FROM mcp_servers) + (SELECT count(*) FROM connections) + (SELECT count(*) FROM tool_grants)"); n != 0 {
			t.Fatalf("%d rows of a deleted server are left", n)
		}
	}
}

// open-parts.md, Details by area, Tools: the audit row of a deleted server counts what was deleted.
func TestDeletingAServerDeletesItsConnectionsAndGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var gone, kept id.ServerID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		for slug, into := range map[string]*id.ServerID{"gone": &gone, "kept": &kept} {
			s, err := tx.server(ctx, slug)
			if err != nil {
				return err
			}
			*into = s
			for range 2 {
				c, err := tx.connection(ctx, s, nil)
				if err != nil {
					return err
				}
				if _, err := tx.grant(ctx, s, api.ToolGrantCreate{ConnectionID: &c}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteServer(ctx, gone) })
	for _, table := range []string{"connections", "tool_grants"} {
		if n := w.count(t, "SELECT count(*)::int FROM "+table+" WHERE mcp_server_id = $1", kept); n != 2 {
			t.Errorf("%d %s of the other server are left", n, table)
		}
		if n := w.count(t, "SELECT count(*)::int FROM "+table); n != 2 {
			t.Errorf("%d %s are left", n, table)
		}
	}
	var detail string
	if err := w.db.Admin(t).QueryRow(t.Context(), "SELECT detail::text FROM audit_log WHERE action = 'mcp_server.delete'").Scan(&detail); err != nil || detail != `{"connections":2,"grants":2}` {
		t.Errorf("audited as %s, %v", detail, err)
	}
}

// BenchmarkAccess reads the access of an agent four org nodes deep, beside other agents'
// grants: every tool call does.
func BenchmarkAccess(b *testing.B) {
	for _, c := range []struct{ servers, grants, others int }{{1, 5, 0}, {20, 200, 0}, {20, 200, 5000}} {
		b.Run(fmt.Sprintf("servers=%d/grants=%d/others=%d", c.servers, c.grants, c.others), func(b *testing.B) {
			w := newWorld(b)
			var node *id.NodeID
			for range 4 {
				n := w.node(b, w.a, node)
				node = &n
			}
			var a id.AgentID
			w.change(b, w.a, func(ctx context.Context, tx *Tx) (err error) {
				if a, err = tx.agent(ctx, node); err != nil {
					return err
				}
				other, err := tx.agent(ctx, nil)
				if err != nil {
					return err
				}
				servers := make([]id.ServerID, c.servers)
				for i := range servers {
					if servers[i], err = tx.server(ctx, fmt.Sprint("s", i)); err != nil {
						return err
					}
					if _, err = tx.connection(ctx, servers[i], nil); err != nil {
						return err
					}
				}
				for i := range c.grants {
					scope := api.ToolGrantCreate{}
					switch i % 3 {
					case 0:
						scope.AgentID = &a
					case 1:
						scope.NodeID = node
					}
					if _, err := tx.grant(ctx, servers[i%len(servers)], scope); err != nil {
						return err
					}
				}
				for i := range 10 {
					if _, err := tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: fmt.Sprint(i), ToolPattern: "*"}); err != nil {
						return err
					}
				}
				_, err = tx.tx.Exec(ctx, `INSERT INTO tool_grants (tenant_id, id, source, tool_pattern, effect, agent_id)
					SELECT $1, gen_random_uuid(), 'builtin', '*', 'allow', $2 FROM generate_series(1, $3)`, w.a, other, c.others)
				return err
			})
			if _, err := w.db.Admin(b).Exec(b.Context(), "ANALYZE"); err != nil {
				b.Fatal(err)
			}
			v := w.View(w.a)
			b.ReportAllocs()
			for b.Loop() {
				got, err := v.Access(b.Context(), a)
				if err != nil || len(got.Grants) != c.grants || len(got.Servers) != c.servers {
					b.Fatalf("%+v, %v", got, err)
				}
			}
		})
	}
}
