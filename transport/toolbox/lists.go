package toolbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"weak"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// Lists of tools: which servers are asked, with which credential, and which list is used when a
// server does not answer.

// listedAs is a server as one credential sees it; without one the connection is
// zero.
type listedAs struct {
	server     id.ServerID
	connection id.ConnectionID
}

func asked(t *mcp.Target) listedAs {
	l := listedAs{server: t.Server}
	if t.Connection != nil {
		l.connection = *t.Connection
	}
	return l
}

const (
	// listPatience bounds the wait for one server's list during a turn, and the one
	// for the storage behind a call whose time is up.
	listPatience = 5 * time.Second
	// downFor is how long a server that could not be listed is not asked again.
	downFor = 15 * time.Second
	maxKept = 1 << 12 // of what is remembered of servers
	// listsAtOnce is how many servers one request asks at a time.
	listsAtOnce = 16
	// maxLists bounds the lists that one request uses, in bytes: four of the largest.
	maxLists = 16 << 20
)

// view is everything that decides on an agent's calls, at one moment.
type view struct {
	access *tool.Access
	specs  []tool.Spec
	bases  []tool.Base // for kb.search
	// skills are the browser skills of specs, by slug.
	skills map[string]*store.Skill
	// secrets are the servers of the agent, each as one of its credentials: what is
	// shown holds none of them.
	secrets []mcp.Target
}

// lookFor is view for a caller.
func (b *Toolbox) lookFor(ctx context.Context, t *tool.Caller, only []string, names ...string) (*view, error) {
	access, err := b.accessFor(ctx, t)
	if err != nil {
		return nil, err
	}
	return b.view(ctx, t.Tenant, access, t.Manifest, only, names)
}

// accessFor reads what is granted to a caller. For a tool node of a workflow it sets the manifest,
// which narrows no server and no skill.
func (b *Toolbox) accessFor(ctx context.Context, t *tool.Caller) (*tool.Access, error) {
	if t.Workflow == nil {
		return b.agentAccess(ctx, t.Tenant, t.Agent)
	}
	access, err := b.workflowAccess(ctx, t.Tenant, *t.Workflow)
	if err != nil {
		return nil, err
	}
	t.Manifest = tool.WorkflowManifest(access)
	for i := range t.Manifest.Tools.MCP {
		t.Manifest.Tools.MCP[i].Allow = []string{"*"}
	}
	return access, nil
}

// look is view for an agent.
func (b *Toolbox) look(ctx context.Context, t id.TenantID, a id.AgentID, m *agent.Manifest, names ...string) (*view, error) {
	access, err := b.agentAccess(ctx, t, a)
	if err != nil {
		return nil, err
	}
	return b.view(ctx, t, access, m, nil, names)
}

// agentAccess reads what is granted to an agent: nothing if it is gone.
func (b *Toolbox) agentAccess(ctx context.Context, t id.TenantID, a id.AgentID) (*tool.Access, error) {
	access, err := b.reads.get(ctx, owner{t, a.UUID}, func(ctx context.Context) (*tool.Access, error) { return b.Tables.View(t).Access(ctx, a) })
	if access == nil {
		access = &tool.Access{Agent: a}
	}
	return access, err
}

// workflowAccess reads what is granted to a workflow: nothing if it is gone.
func (b *Toolbox) workflowAccess(ctx context.Context, t id.TenantID, w id.WorkflowID) (*tool.Access, error) {
	access, err := b.reads.get(ctx, owner{t, w.UUID}, func(ctx context.Context) (*tool.Access, error) { return b.Tables.View(t).WorkflowAccess(ctx, w) })
	if access == nil {
		access = &tool.Access{}
	}
	return access, err
}

// view finds what may be called: the tools of the servers and skills that the manifest names and a
// grant allows. Unless only is nil, these are the servers with one of these slugs, and the skills
// with one behind skillPrefix. With names, the view has only those tools of servers that answer to
// one of them, and the skills that could have one.
func (b *Toolbox) view(ctx context.Context, t id.TenantID, access *tool.Access, m *agent.Manifest, only, names []string) (*view, error) {
	v := &view{access: access}
	var targets []mcp.Target
	var locked []id.ServerID // not asked here: their last known lists count
	for i := range access.Servers {
		s := &access.Servers[i]
		if !s.Enabled || !slices.ContainsFunc(m.Tools.MCP, func(u agent.MCPTools) bool { return u.Server == s.Slug && len(u.Allow) > 0 }) {
			continue
		}
		as, without := b.targets(t, access, s)
		if s.AuthKind != tool.AuthNone {
			v.secrets = append(v.secrets, as...)
		}
		if only != nil && !slices.Contains(only, s.Slug) {
			continue
		}
		targets = append(targets, as...)
		if without {
			locked = append(locked, s.ID)
		}
	}
	var keep func(*tool.Spec) bool
	if len(names) > 0 {
		keep = func(s *tool.Spec) bool { return slices.ContainsFunc(names, s.Answers) }
	}
	var err error
	if v.specs, err = b.lists(ctx, t, targets, locked, keep); err != nil {
		return nil, err
	}
	if err := b.addSkills(ctx, t, v, m, only, names); err != nil {
		return nil, err
	}
	if m.HasBuiltin(agent.BuiltinKBSearch) {
		bases, err := b.Tables.View(t).NamedBases(ctx, m.KnowledgeBases)
		if err != nil {
			return nil, err
		}
		v.bases = bases
		v.specs = append(v.specs, tool.KBSearchSpec(bases))
	}
	if len(m.Handoffs) > 0 {
		v.specs = append(v.specs, tool.HandoffSpec(m.Handoffs))
	}
	return v, nil
}

// targets returns s once for each credential that a grant of the agent may use. without reports
// that a grant has no credential.
func (b *Toolbox) targets(t id.TenantID, access *tool.Access, s *tool.Server) (out []mcp.Target, without bool) {
	seen := map[id.ConnectionID]bool{}
	for i := range access.Grants {
		g := &access.Grants[i]
		if g.Effect != tool.Allow || g.Server == nil || *g.Server != s.ID || g.Agent != nil && *g.Agent != access.Agent ||
			g.Node != nil && !slices.Contains(access.Chain, *g.Node) {
			continue
		}
		c := tool.Usable(access, s, g.Connection)
		switch {
		case s.AuthKind == tool.AuthNone:
			if len(out) == 0 {
				out = append(out, b.target(t, s, nil))
			}
		case c == nil:
			without = true
		case !seen[*c]:
			seen[*c] = true
			out = append(out, b.target(t, s, c))
		}
	}
	return out, without
}

// errNoCredential says that a connection has no credential for the server's
// origin.
var errNoCredential = errors.New("the connection has no credential for this address")

// target is a server with a credential that is opened for each call.
func (b *Toolbox) target(t id.TenantID, s *tool.Server, c *id.ConnectionID) mcp.Target {
	out := mcp.Target{
		Tenant: t, Server: s.ID, Slug: s.Slug, Transport: s.Transport, Endpoint: s.Endpoint, AuthKind: s.AuthKind, Version: s.UpdatedAt, Connection: c,
	}
	if c != nil {
		connection := *c
		out.Credential = func(ctx context.Context) (string, error) {
			row, err := b.Tables.View(t).SealedConnection(ctx, connection)
			if err != nil {
				return "", err
			}
			return b.open(&out, row)
		}
	}
	return out
}

// open returns the credential of a target. row is its connection as it is now, nil if it is gone.
func (b *Toolbox) open(to *mcp.Target, row *store.SealedConnection) (string, error) {
	if row == nil {
		return "", fmt.Errorf("connection %s is gone", *to.Connection)
	}
	// The target was read earlier. A credential goes only to the origin it was given for.
	if len(row.Credentials) == 0 || api.ServerOrigin(row.Transport, row.Endpoint) != api.ServerOrigin(to.Transport, to.Endpoint) {
		return "", errNoCredential
	}
	plain, err := b.Vault.Open(store.ConnectionAt(to.Tenant, row.ID), row.Credentials)
	if err != nil {
		return "", fmt.Errorf("open the credentials of connection %s: %w", row.ID, err)
	}
	return string(plain), nil
}

// gathering collects the lists of several servers, in their order. Lists behind those that fit
// into maxLists are left out.
type gathering struct {
	keep func(*tool.Spec) bool // which tools count; nil: all

	mu    sync.Mutex // guards the fields below
	found [][]tool.Spec
	bytes int // of the lists in found
	end   int // the lists from here on are left out
}

func (g *gathering) wants(i int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return i < g.end
}

func (g *gathering) add(i int, specs []tool.Spec) {
	specs = kept(specs, g.keep)
	g.mu.Lock()
	defer g.mu.Unlock()
	if i >= g.end {
		return
	}
	g.found[i] = specs
	for g.bytes += size(specs); g.bytes > maxLists; {
		g.end--
		g.bytes -= size(g.found[g.end])
		g.found[g.end] = nil
	}
}

// kept returns the tools that keep wants, without a change of specs, which may be shared.
func kept(specs []tool.Spec, keep func(*tool.Spec) bool) (out []tool.Spec) {
	if keep == nil {
		return specs
	}
	for i := range specs {
		if keep(&specs[i]) {
			out = append(out, specs[i])
		}
	}
	return out
}

// size returns the memory of a list, as the gateway counts it.
func size(specs []tool.Spec) (n int) {
	for i := range specs {
		n += len(specs[i].Name) + len(specs[i].Description) + len(specs[i].Schema) + 256
	}
	return n
}

// lists asks several servers at a time, and none after listPatience. A server that does not
// answer, or is not asked, counts with its last known list, as each of locked does. Of two tools
// with one name the first counts. keep says which tools the caller needs; nil: all.
func (b *Toolbox) lists(ctx context.Context, t id.TenantID, targets []mcp.Target, locked []id.ServerID, keep func(*tool.Spec) bool) ([]tool.Spec, error) {
	if len(targets) == 1 && len(locked) == 0 { // no goroutine for the common case
		specs, ok := b.list(ctx, t, targets[0])
		if !ok {
			specs = b.last(ctx, t, targets[0].Server)
		}
		return slices.Clip(kept(specs, keep)), nil // it is shared: who appends must copy
	}
	n := len(targets) + len(locked)
	g := gathering{keep: keep, found: make([][]tool.Spec, n), end: n}
	answered := make([]bool, len(targets))
	places := make(chan struct{}, listsAtOnce)
	var wg sync.WaitGroup
	for began, i := time.Now(), 0; i < len(targets); i++ {
		places <- struct{}{}
		if time.Since(began) >= listPatience || !g.wants(i) {
			break
		}
		wg.Go(func() {
			defer func() { <-places }()
			specs, ok := b.list(ctx, t, targets[i])
			if answered[i] = ok; ok {
				g.add(i, specs)
			}
		})
	}
	wg.Wait()
	// One after the other, so that a request has no more than one connection to the database.
	for i, read := 0, 0; i < g.end && read <= maxLists; i++ {
		var last []tool.Spec
		if i >= len(targets) {
			row, err := b.Tables.View(t).LastTools(ctx, locked[i-len(targets)])
			if err != nil {
				return nil, err
			}
			if row != nil {
				last = row.Specs
			}
		} else if answered[i] {
			continue
		} else {
			last = b.last(ctx, t, targets[i].Server)
		}
		read += size(last)
		g.add(i, last)
	}
	if g.end < n {
		b.Log.Warn().Stringer("tenant", t).Int("servers", n).Int("used", g.end).Msg("lists of tools are left out: they are too large together")
	}
	var out []tool.Spec
	seen := map[string]bool{}
	for _, specs := range g.found {
		for _, s := range specs {
			if q := s.Qualified(); !seen[q] { // two credentials of one server may list the same
				seen[q] = true
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// list returns what a server offers now; false if it does not answer, or was not asked because
// it did not answer lately.
func (b *Toolbox) list(ctx context.Context, t id.TenantID, target mcp.Target) ([]tool.Spec, bool) {
	now := time.Now()
	b.mu.Lock()
	until, out := b.down[asked(&target)]
	b.mu.Unlock()
	if out && now.Before(until) {
		return nil, false
	}
	specs, cached := b.Gateway.Cached(target)
	var err error
	if !cached { // the time of a cached list needs no bound
		bounded, cancel := context.WithTimeout(ctx, listPatience)
		defer cancel()
		specs, err = b.Gateway.Tools(bounded, target)
	}
	if err == nil {
		if out {
			b.mu.Lock()
			delete(b.down, asked(&target))
			b.mu.Unlock()
		}
		b.remember(ctx, &target, specs)
		return specs, true
	}
	if ctx.Err() != nil {
		return nil, true // the caller is gone
	}
	b.note(&target, err)
	b.Log.Warn().Err(err).Stringer("tenant", t).Stringer("server", target.Server).Msg("tool server cannot be listed")
	if errors.Is(err, egress.ErrSuspended) { // then it is not the server that is down
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.down) >= maxKept {
		maps.DeleteFunc(b.down, func(_ listedAs, until time.Time) bool { return until.Before(now) })
	}
	if len(b.down) < maxKept {
		b.down[asked(&target)] = now.Add(downFor)
	}
	return nil, false
}

// last returns the last known list of a server.
func (b *Toolbox) last(ctx context.Context, t id.TenantID, s id.ServerID) []tool.Spec {
	last, err := b.Tables.View(t).LastTools(ctx, s)
	if err != nil {
		b.Log.Warn().Err(err).Stringer("tenant", t).Stringer("server", s).Msg("last known tools cannot be read")
	}
	if last == nil {
		return nil
	}
	return last.Specs
}

func (b *Toolbox) forgetDowntime(s id.ServerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.down, func(l listedAs, _ time.Time) bool { return l.server == s })
}

// note notes how an exchange with a server went. One that was cancelled says nothing of it.
func (b *Toolbox) note(t *mcp.Target, err error) {
	x := store.Exchange{Tenant: t.Tenant, Server: t.Server, Connection: t.Connection, Version: t.Version}
	var e *mcp.Error
	switch {
	case err == nil:
	case !errors.As(err, &e), e.Kind == mcp.Cancelled:
		return
	case e.Kind == mcp.UnknownTool: // the server answered
	case e.Kind == mcp.NoCredential:
		x.Server, x.Error = id.ServerID{}, sentence(e.Message)
	default:
		x.Error = sentence(e.Message)
	}
	b.Note(x)
}

// remember keeps a list that a server has given, for when it is down. The gateway hands the same
// list out until it asks again. An empty list is kept too, once, unless the server has lately
// listed tools with another credential: what one credential may not see is still offered.
func (b *Toolbox) remember(ctx context.Context, t *mcp.Target, specs []tool.Spec) {
	var first weak.Pointer[tool.Spec] // the gateway decides how long a list stays in memory
	if len(specs) > 0 {
		first = weak.Make(&specs[0])
	}
	as := asked(t)
	b.mu.Lock()
	last, known := b.saved[as]
	known = known && last == first
	if !known && len(b.saved) >= maxKept {
		clear(b.saved)
	}
	b.saved[as] = first
	save := !known
	if save && len(specs) == 0 {
		for l, other := range b.saved {
			if l.server == t.Server && other != first {
				save = false
			}
		}
	}
	b.mu.Unlock()
	if !known || len(specs) == 0 { // an empty list does not show whether it is another answer
		b.note(t, nil)
	}
	if !save {
		return
	}
	if err := b.Tables.SaveTools(ctx, t.Tenant, t.Server, specs); err != nil {
		b.Log.Warn().Err(err).Stringer("tenant", t.Tenant).Stringer("server", t.Server).Msg("the list of tools cannot be kept")
	}
}
