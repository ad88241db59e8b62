// Package toolbox says what an agent may call and carries the calls out: it joins the
// tables that grant tools with the gateway to tool servers. Runs offer, plan and call
// through it; the routes list and explain by it.
package toolbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
	"weak"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
	fair "agentsvc/schemas/turn"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// Config is what a Toolbox is made of.
type Config struct {
	Tables    *store.Store
	Vault     *vault.Vault
	Gateway   *mcp.Gateway
	Guard     *egress.Guard
	HTTPSOnly bool                // tool servers by plain http are refused
	Stdio     map[string][]string // commands that the operator allows
	Searcher  Searcher            // nil: knowledge bases are not searched here
	Timeout   time.Duration       // of one call, but not of one of a browser skill
	Skills    *Skills             // nil: browser skills are not run here
	// Judging are the node's places for decisions on many tools that routes ask for; nil: none waits.
	Judging *fair.Places
	// Note notes how an exchange with a tool server went; nil: nothing does. It must not block.
	Note func(store.Exchange)
	Log  zerolog.Logger
}

// Toolbox implements run.Tools for runs and platform.Tools for the routes. Access is
// read again for every turn and for every call, so a grant that was withdrawn no
// longer counts. What a server offers is the list that the gateway remembers.
type Toolbox struct {
	Config
	reads   accesses
	masking *fair.Places
	// teaching are the places for definitions of skills (maxSkills).
	teaching *fair.Places

	mu    sync.Mutex                           // guards the maps below
	down  map[listedAs]time.Time               // until when servers that did not answer a list are not asked
	saved map[listedAs]weak.Pointer[tool.Spec] // the first entry of the list that was given last; zero: it was empty
}

const (
	// maxAnswer is what a model gets of one answer, maxShownAnswer what its step
	// shows.
	maxAnswer      = 1 << 20
	maxShownAnswer = 256 << 10

	// Every credential that an agent may use is looked for in all that its calls show, and strangers choose both: the text and
	// how many credentials there are. The work is their product in bytes, where opening a credential counts as openingBytes. What
	// takes more than maxMasking is not shown; what takes more than freeMasking has a place on the node, one of a tenant.
	maxMasking   = 64 << 20
	freeMasking  = 1 << 20
	openingBytes = 4 << 10
)

// New returns a Toolbox that has read nothing yet.
func New(c Config) *Toolbox {
	if c.Note == nil {
		c.Note = func(store.Exchange) {}
	}
	some := max(1, runtime.GOMAXPROCS(0)/2)
	return &Toolbox{Config: c, masking: fair.New(some, 1), teaching: fair.New(some, 1), reads: accesses{open: map[owner]*turn{}}, down: map[listedAs]time.Time{}, saved: map[listedAs]weak.Pointer[tool.Spec]{}}
}

// Offer implements run.Tools.
func (b *Toolbox) Offer(ctx context.Context, t tool.Caller) ([]model.ToolSpec, error) {
	v, err := b.lookFor(ctx, &t, nil)
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
func (b *Toolbox) Plan(ctx context.Context, t tool.Caller, firstIdx int, calls []model.Call) ([]tool.Planned, error) {
	names := make([]string, len(calls))
	for i := range calls {
		names[i] = calls[i].Name
	}
	v, offers, err := b.named(ctx, &t, names)
	if err != nil {
		return nil, err
	}
	out := make([]tool.Planned, len(calls))
	for i := range calls {
		out[i] = plan(ctx, t, v, offers, firstIdx+i, &calls[i])
		if err := ctx.Err(); err != nil {
			return nil, err // what was planned last may not have been checked
		}
	}
	joinSkills(out)
	b.hide(ctx, v.secrets, out)
	return out, ctx.Err()
}

// named returns the offers that calls by these names could mean. If each name is the qualified name
// of an offer, only the servers and skills of these tools are looked at: a qualified name belongs
// to no other tool, and tool.Find prefers it to bare names.
func (b *Toolbox) named(ctx context.Context, t *tool.Caller, names []string) (*view, []tool.Offer, error) {
	access, err := b.accessFor(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	for only := owners(access, names); ; only = nil {
		v, err := b.view(ctx, t.Tenant, access, t.Manifest, only, names)
		if err != nil {
			return nil, nil, err
		}
		offers := tool.Offers(access, t.Manifest, t.Options, meant(v.specs, names))
		other := func(name string) bool { _, ok := tool.Exact(offers, name); return !ok }
		if only == nil || !slices.ContainsFunc(names, other) {
			return v, offers, nil
		}
	}
}

// owners returns the first parts of qualified names, as view takes them; nil if a name does not
// begin with a server or a skill of the access, or as that of a builtin tool.
func owners(access *tool.Access, names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = ownerOf(name)
		slug, ofSkill := strings.CutPrefix(out[i], skillPrefix)
		if !strings.HasPrefix(name, tool.BuiltinPrefix) &&
			!(ofSkill && slices.ContainsFunc(access.Skills, func(k tool.Skill) bool { return k.Slug == slug })) &&
			!slices.ContainsFunc(access.Servers, func(s tool.Server) bool { return s.Slug == out[i] && s.Enabled }) {
			return nil
		}
	}
	return out
}

// ownerOf returns the part of a qualified name in front of its first dot.
func ownerOf(name string) string {
	owner, _, _ := strings.Cut(name, ".")
	return owner
}

// meant returns the specs of tools that calls by these names could mean: only they are resolved.
func meant(specs []tool.Spec, names []string) []tool.Spec {
	var out []tool.Spec
	for i := range specs {
		if slices.ContainsFunc(names, specs[i].Answers) {
			out = append(out, specs[i])
		}
	}
	return out
}

// hide takes the credentials out of what is shown of calls. What cannot be
// compared with a credential is not shown.
func (b *Toolbox) hide(ctx context.Context, secrets []mcp.Target, plan []tool.Planned) {
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
	if err != nil && ctx.Err() == nil {
		b.Log.Warn().Err(err).Stringer("tenant", secrets[0].Tenant).Msg("arguments are not shown: they cannot be compared with the credentials")
	}
}

// ShowEdit implements approval.Secrets. The credentials are those of all servers that grants
// name: an approval does not know which of them the manifest of the run names.
func (b *Toolbox) ShowEdit(ctx context.Context, by tool.Caller, args json.RawMessage) (json.RawMessage, error) {
	var access *tool.Access
	var err error
	if by.Workflow != nil {
		access, err = b.workflowAccess(ctx, by.Tenant, *by.Workflow)
	} else {
		access, err = b.agentAccess(ctx, by.Tenant, by.Agent)
	}
	if err != nil {
		return nil, err
	}
	var secrets []mcp.Target
	for i := range access.Servers {
		if s := &access.Servers[i]; s.AuthKind != tool.AuthNone {
			as, _ := b.targets(by.Tenant, access, s)
			secrets = append(secrets, as...)
		}
	}
	shown := []tool.Planned{{Shown: redact.JSON(args)}}
	b.hide(ctx, secrets, shown)
	return shown[0].Shown, nil
}

var errMasking = errors.New("toolbox: too much text for so many credentials")

// masked opens each credential once for all values, which are JSON or nothing. secrets are those of
// one tenant, and not empty. It stops at the next credential once ctx has ended.
func (b *Toolbox) masked(ctx context.Context, secrets []mcp.Target, values []json.RawMessage) ([]json.RawMessage, error) {
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
	tenant := secrets[0].Tenant
	if work := len(secrets) * (len(all) + openingBytes); work > maxMasking {
		return nil, errMasking
	} else if work > freeMasking {
		if err := b.masking.Take(ctx, tenant); err != nil {
			return nil, err
		}
		defer b.masking.Give(tenant)
	}
	connections := make([]id.ConnectionID, len(secrets))
	for i := range secrets {
		connections[i] = *secrets[i].Connection
	}
	rows, err := b.Tables.View(tenant).SealedConnections(ctx, connections)
	if err != nil {
		return nil, err
	}
	sealed := make(map[id.ConnectionID]*store.SealedConnection, len(rows))
	for i := range rows {
		sealed[rows[i].ID] = &rows[i]
	}
	for _, s := range secrets {
		s.Credential = func(context.Context) (string, error) { return b.open(&s, sealed[*s.Connection]) }
		if all, err = b.Gateway.Mask(ctx, s, all); err != nil {
			return nil, err
		}
	}
	var out []json.RawMessage
	err = json.Unmarshal(all, &out)
	return out, err
}

func plan(ctx context.Context, t tool.Caller, v *view, offers []tool.Offer, idx int, call *model.Call) tool.Planned {
	p := tool.Planned{CallID: call.ID, Tool: call.Name, Args: call.Args}
	refuse := func(code, message string) tool.Planned {
		o := tool.FailedResult(code, message)
		if p.Refused = &o; p.Shown == nil {
			p.Shown = redact.JSON(p.Args)
		}
		return p
	}
	o, ok := tool.Find(offers, call.Name)
	if !ok {
		if why := tool.NotForNodes(call.Name); why != "" && t.Workflow != nil {
			return refuse(tool.ErrNotGranted, sentence(why)+" Nothing was run.")
		}
		return refuse(tool.ErrNotGranted, fmt.Sprintf("The tool %q is not granted to this %s. Nothing was run.", clipName(call.Name), t.What()))
	}
	p.Tool, p.Schema = o.Qualified(), o.Schema
	if call.Malformed != "" {
		p.Shown = shownMalformed
		return refuse(tool.ErrInvalidArgs, "The arguments are no JSON object. Nothing was run.")
	}
	if o.Source == tool.BrowserSkill {
		args, err := bindSkill(ctx, v, o, call.Args)
		if err != nil {
			return refuse(tool.ErrInvalidArgs, err.Error())
		}
		call = &model.Call{ID: call.ID, Name: call.Name, Args: args}
	}
	takesKey := tool.TakesKey(o.Schema)
	if p.Args = call.Args; takesKey {
		p.Args = tool.WithKey(o.Schema, call.Args, tool.Key(t.Run, idx))
	}
	p.Shown = redact.JSON(p.Args)
	switch err := tool.Check(ctx, o.Schema, p.Args); {
	case errors.Is(err, tool.ErrSchema):
		return refuse(tool.ErrToolFailed, "The tool's own schema cannot be used. Nothing was run.")
	case err != nil:
		return refuse(tool.ErrInvalidArgs, err.Error())
	case o.NoConnection:
		return refuse(tool.ErrNoConnection, "There is no connection with a credential for the tool server of "+p.Tool+". Nothing was run.")
	}
	p.Handoff = o.Source == tool.Builtin && o.Name == tool.HandoffName
	p.Retrieval = o.IsKBSearch()
	if o.Source == tool.BrowserSkill {
		p.Skill = planSkill(t, o, p.Args)
		if p.Skill.Previews {
			p.Schema = skill.ToolSchema(v.skills[o.Owner].Definition, skill.ForEdit)
		}
	}
	p.Repeat = p.Handoff || o.ReadOnly || o.Idempotent || takesKey
	if o.Terms != nil {
		approval := id.ApprovalID{UUID: id.New(t.Run.Shard())}
		p.Terms, p.Approval = o.Terms, &approval
		if len(v.access.Chain) > 0 {
			p.Node = &v.access.Chain[0]
		}
	}
	return p
}

// shownMalformed is shown in place of arguments we cannot redact.
var shownMalformed = json.RawMessage(`{"malformed":"` + redact.Mark + `"}`)

func clipName(s string) string {
	if r := []rune(s); len(r) > 200 {
		return string(r[:200]) + "…"
	}
	return s
}

func (b *Toolbox) targetOf(t id.TenantID, access *tool.Access, o *tool.Offer) (mcp.Target, error) {
	for i := range access.Servers {
		if s := &access.Servers[i]; s.Slug == o.Owner {
			return b.target(t, s, o.Connection), nil
		}
	}
	return mcp.Target{}, fmt.Errorf("there is no tool server %q", o.Owner)
}

// Call implements run.Tools. It reads the grants and policies again: a call that
// was granted when it was planned, and is not granted any more, is not sent.
func (b *Toolbox) Call(caller context.Context, t tool.Caller, _ int, p tool.Planned) tool.Outcome {
	if p.Skill != nil {
		return b.callSkill(caller, t, p)
	}
	ctx, cancel := context.WithTimeout(caller, b.Timeout)
	defer cancel()
	sent := false // by an earlier attempt, as far as this node knows
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		out, err := b.call(ctx, caller, t, p)
		if sent {
			out = out.After()
		}
		if !errors.Is(err, egress.ErrSuspended) {
			return out
		}
		// The lease had run out. With it, what was not sent is sent; what may have been,
		// only where the tool knows it again.
		if e := (*mcp.Error)(nil); errors.As(err, &e) && e.MaybeRan {
			if !p.Repeat {
				return tool.UnknownOutcome
			}
			sent = true
		}
		if !pause.For(ctx, wait) {
			return out
		}
	}
}

// call is one attempt; the error is what the gateway said, of which the outcome
// tells the model.
func (b *Toolbox) call(ctx, caller context.Context, t tool.Caller, p tool.Planned) (tool.Outcome, error) {
	owner, name, _ := strings.Cut(p.Tool, ".")
	v, err := again(ctx, func() (*view, error) { return b.lookFor(ctx, &t, []string{owner}, p.Tool) })
	if err != nil {
		if caller.Err() == nil {
			b.Log.Error().Err(err).Stringer("tenant", t.Tenant).Stringer("run", t.Run).Msg("what decides on a tool call cannot be read")
		}
		return tool.UnsentResult(tool.ErrToolFailed, "The call could not be prepared. Nothing was run."), nil
	}
	if p.Retrieval {
		return b.searchCall(ctx, t, v, p), nil
	}
	o, ok := tool.Exact(tool.Offers(v.access, t.Manifest, t.Options, meant(v.specs, []string{p.Tool})), p.Tool)
	switch {
	case !ok && tool.Resolve(v.access, t.Manifest, t.Options, tool.Spec{Source: tool.MCP, Owner: owner, Name: name}).Verdict != tool.Refused:
		return tool.UnsentResult(tool.ErrToolFailed, fmt.Sprintf("The tool server does not list %q any more. Nothing was run.", p.Tool)), nil
	case !ok:
		return tool.UnsentResult(tool.ErrNotGranted, fmt.Sprintf("The tool %q is not granted to this %s any more. Nothing was run.", p.Tool, t.What())), nil
	case o.NoConnection:
		return tool.UnsentResult(tool.ErrNoConnection, "There is no connection with a credential for the tool server of "+p.Tool+". Nothing was run."), nil
	}
	target, err := b.targetOf(t.Tenant, v.access, o)
	if err != nil {
		return tool.UnsentResult(tool.ErrToolFailed, "The tool server is gone. Nothing was run."), nil
	}
	answer, failed := b.Gateway.Call(ctx, target, o.Name, p.Args)
	b.note(&target, failed)
	out := outcome(answer)
	if failed != nil {
		out = failedCall(failed)
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
	return out, failed
}

// The pause before what could not be done yet is tried again.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// again repeats a read while the storage cannot serve. It returns the last error once ctx has ended.
func again[T any](ctx context.Context, read func() (T, error)) (T, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		v, err := read()
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrUnavailable) || !pause.For(ctx, wait) {
			return v, err
		}
	}
}

// failedCall is what the model hears of a call that came to no answer.
func failedCall(err error) tool.Outcome {
	code, message, maybe := tool.ErrToolFailed, "The tool server could not be asked.", true
	var e *mcp.Error
	if errors.As(err, &e) {
		message, maybe = sentence(e.Message), e.MaybeRan
		if errors.Is(e, errNoCredential) {
			code = tool.ErrNoConnection
		}
		if e.Kind == mcp.Timeout {
			code = tool.ErrToolTimeout
		}
	}
	if maybe {
		message += " It is not known whether the tool did its work."
	} else {
		message += " Nothing was run."
	}
	out := tool.FailedResult(code, message)
	out.Unsent = !maybe
	return out
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

// shownAnswer returns an answer as a step shows it: as JSON where it is JSON, else as a text.
func shownAnswer(content string) json.RawMessage {
	if raw := json.RawMessage(content); len(content) <= maxShownAnswer && json.Valid(raw) && scan.Depth(raw) <= scan.MaxDepth {
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
