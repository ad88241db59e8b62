package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"agentsvc/actors/run"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// toolbox joins what decides on tool calls with the gateway that makes them: the
// run actor's Tools and the routes'. What may be called is read anew for every
// turn and for every call, so that a grant that was taken back is gone at once;
// what servers offer is what the gateway remembers of them.
type toolbox struct {
	tables  *store.Store
	vault   *vault.Vault
	gateway *mcp.Gateway
	guard   *egress.Guard
	https   bool                // plain http is refused
	stdio   map[string][]string // commands that the operator allows
	timeout time.Duration       // of one call
	log     zerolog.Logger

	mu    sync.Mutex              // guards down and saved
	down  map[listedAs]downtime   // who did not get a list lately
	saved map[listedAs]*tool.Spec // the first of the list that was kept last
}

func newToolbox(tables *store.Store, keys *vault.Vault, gateway *mcp.Gateway, guard *egress.Guard, c *Config, log zerolog.Logger) *toolbox {
	return &toolbox{
		tables: tables, vault: keys, gateway: gateway, guard: guard, https: c.Production, stdio: c.StdioServers, timeout: c.ToolTimeout, log: log,
		down: map[listedAs]downtime{}, saved: map[listedAs]*tool.Spec{},
	}
}

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

// downtime is of a server that could not be listed; until then its last known list
// counts without asking.
type downtime struct {
	until time.Time
	last  []tool.Spec
}

const (
	// listPatience bounds the wait for one server's list during a turn, and the one
	// for the storage behind a call whose time is up.
	listPatience = 5 * time.Second
	// downFor is how long a server that could not be listed is not asked again.
	downFor = 15 * time.Second
	maxKept = 1 << 12 // of what is remembered of servers
	// maxAnswer is what a model gets of one answer, maxShownAnswer what its step
	// shows.
	maxAnswer      = 1 << 20
	maxShownAnswer = 64 << 10
)

// view is everything that decides on an agent's calls, at one moment.
type view struct {
	access *tool.Access
	specs  []tool.Spec
	// secrets are the servers of the agent, each as one of its credentials: what is
	// shown holds none of them.
	secrets []mcp.Target
}

// look reads what an agent may call: access from the tables, lists from the
// servers that its manifest names and a grant allows. Unless only is empty, no
// other server than that of this slug is asked.
func (b *toolbox) look(ctx context.Context, t id.TenantID, a id.AgentID, m *agent.Manifest, only string) (*view, error) {
	access, err := b.tables.View(t).Access(ctx, a)
	if err != nil {
		return nil, err
	}
	if access == nil { // the agent is gone: nothing is granted to it
		access = &tool.Access{Agent: a}
	}
	v := &view{access: access}
	var targets []mcp.Target
	var locked []string // nobody may ask them: their last known lists count
	for i := range access.Servers {
		s := &access.Servers[i]
		if !s.Enabled || !slices.ContainsFunc(m.Tools.MCP, func(u agent.MCPTools) bool { return u.Server == s.Slug && len(u.Allow) > 0 }) {
			continue
		}
		as, without := b.targets(t, access, s)
		if s.AuthKind != tool.AuthNone {
			v.secrets = append(v.secrets, as...)
		}
		if only != "" && s.Slug != only {
			continue
		}
		targets = append(targets, as...)
		if without {
			locked = append(locked, s.Slug)
		}
	}
	v.specs = b.lists(ctx, t, targets)
	if len(locked) > 0 {
		last, err := b.tables.View(t).LastTools(ctx)
		if err != nil {
			return nil, err
		}
		for _, slug := range locked {
			v.specs = append(v.specs, last[slug]...) // of two of one name the first is offered
		}
	}
	if len(m.Handoffs) > 0 {
		v.specs = append(v.specs, tool.HandoffSpec(m.Handoffs))
	}
	return v, nil
}

// targets are a server as whom its tools are listed: with each credential that a
// grant of the agent could choose. without says that a grant finds none.
func (b *toolbox) targets(t id.TenantID, access *tool.Access, s *tool.Server) (out []mcp.Target, without bool) {
	seen := map[id.ConnectionID]bool{}
	for i := range access.Grants {
		g := &access.Grants[i]
		if g.Effect != tool.Allow || g.Server == nil || *g.Server != s.ID || g.Agent != nil && *g.Agent != access.Agent ||
			g.Node != nil && !slices.Contains(access.Chain, *g.Node) {
			continue
		}
		c := g.Connection
		if c == nil {
			c = tool.Nearest(access, s)
		}
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

// target is a server with a credential that is opened for each call.
func (b *toolbox) target(t id.TenantID, s *tool.Server, c *id.ConnectionID) mcp.Target {
	out := mcp.Target{
		Tenant: t, Server: s.ID, Slug: s.Slug, Transport: s.Transport, Endpoint: s.Endpoint, AuthKind: s.AuthKind, Version: s.UpdatedAt, Connection: c,
	}
	if c != nil {
		connection := *c
		out.Credential = func(ctx context.Context) (string, error) {
			row, err := b.tables.View(t).SealedConnection(ctx, connection)
			if err != nil {
				return "", err
			}
			if row == nil {
				return "", fmt.Errorf("connection %s is gone", connection)
			}
			plain, err := b.vault.Open(store.ConnectionAt(t, connection), row.Credentials)
			if err != nil {
				return "", fmt.Errorf("open the credentials of connection %s: %w", connection, err)
			}
			return string(plain), nil
		}
	}
	return out
}

// lists asks all servers at once. A server that does not answer counts with its
// last known list.
func (b *toolbox) lists(ctx context.Context, t id.TenantID, targets []mcp.Target) []tool.Spec {
	if len(targets) == 1 { // no goroutine for the common case
		return b.list(ctx, t, targets[0])
	}
	found := make([][]tool.Spec, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Go(func() { found[i] = b.list(ctx, t, target) })
	}
	wg.Wait()
	var out []tool.Spec
	seen := map[string]bool{}
	for _, specs := range found {
		for _, s := range specs {
			if q := s.Qualified(); !seen[q] { // two credentials of one server may list the same
				seen[q] = true
				out = append(out, s)
			}
		}
	}
	return out
}

func (b *toolbox) list(ctx context.Context, t id.TenantID, target mcp.Target) []tool.Spec {
	now := time.Now()
	b.mu.Lock()
	was, out := b.down[asked(&target)]
	b.mu.Unlock()
	if out && now.Before(was.until) {
		return was.last
	}
	bounded, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	specs, err := b.gateway.Tools(bounded, target)
	if err == nil {
		if out {
			b.mu.Lock()
			delete(b.down, asked(&target))
			b.mu.Unlock()
		}
		b.remember(ctx, &target, specs)
		return specs
	}
	if ctx.Err() != nil {
		return nil
	}
	b.log.Warn().Err(err).Stringer("tenant", t).Stringer("server", target.Server).Msg("tool server cannot be listed")
	last, err := b.tables.View(t).LastTools(ctx)
	if err != nil {
		b.log.Warn().Err(err).Stringer("tenant", t).Msg("last known tools cannot be read")
	}
	list := slices.Clip(last[target.Slug]) // it is shared: who appends must copy
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.down) >= maxKept {
		maps.DeleteFunc(b.down, func(_ listedAs, d downtime) bool { return d.until.Before(now) })
	}
	if len(b.down) < maxKept {
		b.down[asked(&target)] = downtime{until: now.Add(downFor), last: list}
	}
	return list
}

func (b *toolbox) forgetDowntime(s id.ServerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.down, func(l listedAs, _ downtime) bool { return l.server == s })
}

// remember keeps a list that a server has given, for when it is down. The
// gateway hands the same list out until it asks again.
func (b *toolbox) remember(ctx context.Context, t *mcp.Target, specs []tool.Spec) {
	if len(specs) == 0 {
		return
	}
	b.mu.Lock()
	as := asked(t)
	known := b.saved[as] == &specs[0]
	if !known && len(b.saved) >= maxKept {
		clear(b.saved)
	}
	b.saved[as] = &specs[0]
	b.mu.Unlock()
	if known {
		return
	}
	if err := b.tables.SaveTools(ctx, t.Tenant, t.Server, specs); err != nil {
		b.log.Warn().Err(err).Stringer("tenant", t.Tenant).Stringer("server", t.Server).Msg("the list of tools cannot be kept")
	}
}

// Offer implements run.Tools.
func (b *toolbox) Offer(ctx context.Context, t run.Turn) ([]model.ToolSpec, error) {
	v, err := b.look(ctx, t.Tenant, t.Agent, t.Manifest, "")
	if err != nil {
		return nil, err
	}
	offers := tool.Offers(v.access, t.Manifest, t.Options, v.specs)
	out := make([]model.ToolSpec, len(offers))
	for i := range offers {
		o := &offers[i]
		out[i] = model.ToolSpec{Name: o.Qualified(), Description: o.Description, Schema: o.Schema}
	}
	return out, nil
}

// Plan implements run.Tools.
func (b *toolbox) Plan(ctx context.Context, t run.Turn, firstIdx int, calls []model.Call) ([]tool.Planned, error) {
	v, err := b.look(ctx, t.Tenant, t.Agent, t.Manifest, "")
	if err != nil {
		return nil, err
	}
	offers := tool.Offers(v.access, t.Manifest, t.Options, v.specs)
	out := make([]tool.Planned, len(calls))
	for i := range calls {
		out[i] = plan(t, v, offers, firstIdx+i, &calls[i])
	}
	b.hide(ctx, v.secrets, out)
	return out, nil
}

// hide takes the credentials out of what is shown of calls. What cannot be
// compared with a credential is not shown.
func (b *toolbox) hide(ctx context.Context, secrets []mcp.Target, plan []tool.Planned) {
	if len(secrets) == 0 {
		return
	}
	shown := make([]json.RawMessage, len(plan))
	for i := range plan {
		shown[i] = plan[i].Shown
	}
	shown, err := b.masked(ctx, secrets, shown)
	for i := range plan {
		if plan[i].Shown = shownMalformed; err == nil {
			plan[i].Shown = shown[i]
		}
	}
	if err != nil {
		b.log.Warn().Err(err).Stringer("tenant", secrets[0].Tenant).Msg("arguments are not shown: a credential cannot be opened")
	}
}

// masked opens each credential once for all values, which are JSON or nothing.
func (b *toolbox) masked(ctx context.Context, secrets []mcp.Target, values []json.RawMessage) ([]json.RawMessage, error) {
	all := []byte{'['}
	for i, v := range values {
		if i > 0 {
			all = append(all, ',')
		}
		if len(v) == 0 {
			v = json.RawMessage("null")
		}
		all = append(all, v...)
	}
	all = append(all, ']')
	for _, s := range secrets {
		var err error
		if all, err = b.gateway.Mask(ctx, s, all); err != nil {
			return nil, err
		}
	}
	var out []json.RawMessage
	err := json.Unmarshal(all, &out)
	return out, err
}

func plan(t run.Turn, v *view, offers []tool.Offer, idx int, call *model.Call) tool.Planned {
	p := tool.Planned{CallID: call.ID, Tool: call.Name, Args: call.Args, Shown: redact.JSON(call.Args)}
	refuse := func(code, message string) tool.Planned {
		o := tool.FailedResult(code, message)
		p.Refused = &o
		return p
	}
	o, ok := tool.Find(offers, call.Name)
	if !ok {
		return refuse(tool.ErrNotGranted, fmt.Sprintf("The tool %q is not granted to this agent. Nothing was run.", clipName(call.Name)))
	}
	p.Tool, p.Schema = o.Qualified(), o.Schema
	if call.Malformed != "" {
		p.Shown = shownMalformed
		return refuse(tool.ErrInvalidArgs, "The arguments are no JSON object. Nothing was run.")
	}
	p.Args = tool.WithKey(o.Schema, call.Args, tool.Key(t.Run, idx))
	p.Shown = redact.JSON(p.Args)
	switch err := tool.Check(o.Schema, p.Args); {
	case errors.Is(err, tool.ErrSchema):
		return refuse(tool.ErrToolFailed, "The tool's own schema cannot be used. Nothing was run.")
	case err != nil:
		return refuse(tool.ErrInvalidArgs, err.Error())
	case o.NoConnection:
		return refuse(tool.ErrNoConnection, "There is no connection with a credential for the tool server of "+p.Tool+". Nothing was run.")
	}
	p.Handoff = o.Source == tool.Builtin && o.Name == tool.HandoffName
	p.Repeat = p.Handoff || o.ReadOnly || o.Idempotent || tool.TakesKey(o.Schema)
	if o.Terms != nil {
		approval := id.ApprovalID{UUID: id.New(t.Run.Shard())}
		p.Terms, p.Approval = o.Terms, &approval
		if len(v.access.Chain) > 0 {
			p.Node = &v.access.Chain[0]
		}
	}
	return p
}

// shownMalformed is shown for arguments of which nothing can say what is secret.
var shownMalformed = json.RawMessage(`{"malformed":"` + redact.Mark + `"}`)

func clipName(s string) string {
	if r := []rune(s); len(r) > 200 {
		return string(r[:200]) + "…"
	}
	return s
}

func (b *toolbox) targetOf(t id.TenantID, access *tool.Access, o *tool.Offer) (mcp.Target, error) {
	for i := range access.Servers {
		if s := &access.Servers[i]; s.Slug == o.Owner {
			return b.target(t, s, o.Connection), nil
		}
	}
	return mcp.Target{}, fmt.Errorf("there is no tool server %q", o.Owner)
}

// Call implements run.Tools. What decides is read again: what was granted when
// the call was planned, and is not any more, is not called.
func (b *toolbox) Call(caller context.Context, t run.Turn, _ int, p tool.Planned) tool.Outcome {
	ctx, cancel := context.WithTimeout(caller, b.timeout)
	defer cancel()
	owner, name, _ := strings.Cut(p.Tool, ".")
	v, err := b.again(ctx, func() (*view, error) { return b.look(ctx, t.Tenant, t.Agent, t.Manifest, owner) })
	if err != nil {
		if caller.Err() == nil {
			b.log.Error().Err(err).Stringer("tenant", t.Tenant).Stringer("run", t.Run).Msg("what decides on a tool call cannot be read")
		}
		return tool.FailedResult(tool.ErrToolFailed, "The call could not be prepared. Nothing was run.")
	}
	offers := tool.Offers(v.access, t.Manifest, t.Options, v.specs)
	o, ok := tool.Exact(offers, p.Tool)
	switch {
	case !ok && tool.Resolve(v.access, t.Manifest, t.Options, tool.Spec{Source: tool.MCP, Owner: owner, Name: name}).Verdict != tool.Refused:
		return tool.FailedResult(tool.ErrToolFailed, fmt.Sprintf("The tool server does not list %q any more. Nothing was run.", p.Tool))
	case !ok:
		return tool.FailedResult(tool.ErrNotGranted, fmt.Sprintf("The tool %q is not granted to this agent any more. Nothing was run.", p.Tool))
	case o.NoConnection:
		return tool.FailedResult(tool.ErrNoConnection, "There is no connection with a credential for the tool server of "+p.Tool+". Nothing was run.")
	}
	target, err := b.targetOf(t.Tenant, v.access, o)
	if err != nil {
		return tool.FailedResult(tool.ErrToolFailed, "The tool server is gone. Nothing was run.")
	}
	answer, err := b.gateway.Call(ctx, target, o.Name, p.Args)
	out := outcome(answer)
	if err != nil {
		out = failedCall(err)
	}
	// The gateway has taken this connection's credential out already.
	others := slices.DeleteFunc(v.secrets, func(s mcp.Target) bool { return o.Connection != nil && *s.Connection == *o.Connection })
	if len(others) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listPatience)
		defer cancel()
		shown, err := b.masked(ctx, others, []json.RawMessage{out.Shown})
		if out.Shown = shownMalformed; err == nil {
			out.Shown = shown[0]
		}
	}
	return out
}

// again repeats a read while the storage cannot serve: nothing was called yet.
func (b *toolbox) again(ctx context.Context, read func() (*view, error)) (*view, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		v, err := read()
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrUnavailable) {
			return v, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// failedCall is what the model hears of a call that came to no answer.
func failedCall(err error) tool.Outcome {
	code, message, maybe := tool.ErrToolFailed, "The tool server could not be asked.", true
	var e *mcp.Error
	if errors.As(err, &e) {
		message, maybe = sentence(e.Message), e.MaybeRan
		if e.Kind == mcp.Timeout {
			code = tool.ErrToolTimeout
		}
	}
	if maybe {
		message += " It is not known whether the tool did its work."
	} else {
		message += " Nothing was run."
	}
	return tool.FailedResult(code, message)
}

// sentence makes one of what the gateway says, which is as Go's errors are.
func sentence(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(first)) + s[size:]
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "…") {
		return s
	}
	return s + "."
}

// outcome is an answer as model and step see it.
func outcome(a mcp.Answer) tool.Outcome {
	content := model.Clean(a.Content)
	if len(content) > maxAnswer {
		content = strings.ToValidUTF8(content[:maxAnswer], "") + fmt.Sprintf("\n[the answer was cut at %d bytes]", maxAnswer)
	}
	return tool.Outcome{Content: content, Shown: shownAnswer(content), IsError: a.IsError}
}

func shownAnswer(content string) json.RawMessage {
	if raw := json.RawMessage(content); len(content) <= maxShownAnswer && json.Valid(raw) {
		return redact.JSON(model.CleanJSON(bytes.TrimSpace(raw)))
	}
	if len(content) > maxShownAnswer {
		content = strings.ToValidUTF8(content[:maxShownAnswer], "") + "…"
	}
	shown, err := json.Marshal(content)
	if err != nil {
		panic(err) // a text always encodes
	}
	return shown
}

// manifest is the one that an agent's next run has, or its newest version's.
func (b *toolbox) manifest(ctx context.Context, t id.TenantID, a id.AgentID) (*agent.Manifest, error) {
	v := b.tables.View(t)
	row, err := v.Agent(ctx, a)
	if err != nil {
		return nil, err
	}
	version := row.LatestVersion
	if row.PublishedVersion != nil {
		version = *row.PublishedVersion
	}
	if version == 0 {
		return &agent.Manifest{}, nil // it may call nothing yet
	}
	found, err := v.Version(ctx, a, version)
	if err != nil {
		return nil, err
	}
	return agent.Load(json.RawMessage(found.Manifest))
}

// Offered implements platform.Tools.
func (b *toolbox) Offered(ctx context.Context, t id.TenantID, a id.AgentID) ([]tool.Offer, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	v, err := b.look(ctx, t, a, m, "")
	if err != nil {
		return nil, err
	}
	return tool.Offers(v.access, m, tool.Options{}, v.specs), nil
}

// Explain implements platform.Tools. Tools of servers that the manifest does not
// name are explained as well.
func (b *toolbox) Explain(ctx context.Context, t id.TenantID, a id.AgentID, name string) (*tool.Explanation, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	v, err := b.look(ctx, t, a, m, "")
	if err != nil {
		return nil, err
	}
	last, err := b.tables.View(t).LastTools(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, s := range v.specs {
		known[s.Qualified()] = true
	}
	for _, specs := range last {
		for _, s := range specs {
			if !known[s.Qualified()] {
				v.specs = append(v.specs, s)
			}
		}
	}
	return tool.Explain(v.access, m, tool.Options{}, v.specs, name), nil
}

// Known implements platform.Tools: the last known lists first, then, where a
// token matches none of them, what the servers offer now.
func (b *toolbox) Known(ctx context.Context, t id.TenantID, tokens []string) ([]bool, error) {
	last, err := b.tables.View(t).LastTools(ctx)
	if err != nil {
		return nil, err
	}
	specs := []tool.Spec{{Source: tool.Builtin, Name: agent.BuiltinKBSearch}, {Source: tool.Builtin, Name: tool.HandoffName}}
	for _, list := range last {
		specs = append(specs, list...)
	}
	known := matched(tokens, specs)
	if !slices.Contains(known, false) {
		return known, nil
	}
	servers, err := b.tables.View(t).Servers(ctx, id.ServerID{}, store.All)
	if err != nil {
		return nil, err
	}
	var targets []mcp.Target
	for i := range servers {
		if !servers[i].Enabled {
			continue
		}
		c, err := b.tenantWide(ctx, t, &servers[i])
		if err != nil {
			return nil, err
		}
		targets = append(targets, b.target(t, server(&servers[i]), c))
	}
	now := matched(tokens, b.lists(ctx, t, targets))
	for i := range known {
		known[i] = known[i] || now[i]
	}
	return known, nil
}

func matched(tokens []string, specs []tool.Spec) []bool {
	out := make([]bool, len(tokens))
	for i, token := range tokens {
		out[i] = slices.ContainsFunc(specs, func(s tool.Spec) bool { return tool.MatchesToken(token, s) })
	}
	return out
}

// Test implements platform.Tools.
func (b *toolbox) Test(ctx context.Context, t id.TenantID, s id.ServerID, c *id.ConnectionID) ([]tool.Spec, error) {
	row, err := b.tables.View(t).Server(ctx, s)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if c, err = b.tenantWide(ctx, t, row); err != nil {
			return nil, err
		}
	}
	if c == nil && row.AuthKind != tool.AuthNone {
		return nil, unreachable("There is no connection with a credential for this server.")
	}
	target := b.target(t, server(row), c)
	specs, err := b.gateway.Fresh(ctx, target)
	var e *mcp.Error
	if errors.As(err, &e) {
		return nil, unreachable(e.Message)
	}
	if err != nil {
		return nil, err
	}
	b.forgetDowntime(s)
	b.remember(ctx, &target, specs)
	return specs, nil
}

// tenantWide is the credential that a server is listed with for nobody in
// particular, nil where it takes none.
func (b *toolbox) tenantWide(ctx context.Context, t id.TenantID, s *api.MCPServer) (*id.ConnectionID, error) {
	if s.AuthKind == tool.AuthNone {
		return nil, nil
	}
	return b.tables.View(t).TenantWide(ctx, s.ID)
}

// server is a tool server's row as resolution sees it.
func server(row *api.MCPServer) *tool.Server {
	return &tool.Server{ID: row.ID, Slug: row.Slug, Transport: row.Transport, Endpoint: row.Endpoint, AuthKind: row.AuthKind, Enabled: row.Enabled, UpdatedAt: row.UpdatedAt}
}

func unreachable(why string) *problem.Error {
	return &problem.Error{Code: problem.CodeMCPUnreachable, Detail: sentence(why), Extensions: map[string]any{"errors": []string{why}}}
}

// Forget implements platform.Tools.
func (b *toolbox) Forget(t id.TenantID, s id.ServerID) {
	b.gateway.Forget(t, s)
	b.forgetDowntime(s)
}

// CheckEndpoint implements platform.Tools.
func (b *toolbox) CheckEndpoint(ctx context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error {
	if transport == tool.Stdio {
		if _, ok := b.stdio[endpoint]; !ok {
			return errors.New("must name a command that the operator allows (SVC_STDIO_SERVERS)")
		}
		if auth != tool.AuthNone {
			return errors.New("a stdio server takes no credential: auth_kind must be none")
		}
		return nil
	}
	if strings.Contains(endpoint, "#") {
		return errors.New("must hold no fragment")
	}
	return b.guard.CheckURL(ctx, endpoint, egress.Rules{HTTPSOnly: b.https})
}
