package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/event"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
)

// Store reads rows (engine.Store).
type Store interface {
	// Workflow returns a workflow run; nil if there is none.
	Workflow(ctx context.Context, tenant id.TenantID, run id.RunID) (*engine.Workflow, error)
	// Definition returns the definition of a version; nil if there is none.
	Definition(ctx context.Context, tenant id.TenantID, workflow id.WorkflowID, version int) (json.RawMessage, error)
	// NodeApprovals returns the approvals of the open steps of a run.
	NodeApprovals(ctx context.Context, tenant id.TenantID, run id.RunID) ([]engine.NodeApproval, error)
	// Children returns those of the runs that exist.
	Children(ctx context.Context, tenant id.TenantID, runs []id.RunID) ([]engine.Child, error)
	// Used returns what those of the runs that exist have used together.
	Used(ctx context.Context, tenant id.TenantID, runs []id.RunID) (engine.Used, error)
}

// Live publishes to the readers of a run's events (stream.Hubs).
type Live interface {
	PublishFunc(tenant id.TenantID, run id.RunID, last int64, terminal bool, frames func() []*event.Frame)
	Abandon(tenant id.TenantID, run id.RunID)
}

// Sealer seals and opens what nodes work with and leave (vault.Vault).
type Sealer interface {
	Seal(place vault.AAD, plain []byte) (vault.Sealed, error)
	Open(place vault.AAD, sealed vault.Sealed) ([]byte, error)
}

// Slots limit the running runs of a tenant. Neither call blocks.
type Slots interface {
	Acquire(tenant id.TenantID, wish msg.AcquireSlot)
	Release(tenant id.TenantID, done msg.ReleaseSlot)
}

// Actors sends messages to actors (cluster.Node).
type Actors interface {
	Tell(a cluster.Address, message any)
	Ask(ctx context.Context, a cluster.Address, message any) (any, error)
}

// Tools plans and carries out calls (toolbox.Toolbox).
type Tools interface {
	// Plan resolves each call: refused, gated or to be called. calls[i] is step first+i, from
	// which its idempotency_key is derived. The error is the storage's.
	Plan(ctx context.Context, t tool.Caller, first int, calls []model.Call) ([]tool.Planned, error)
	// Call carries out the planned call of step idx. It always answers; the answer is dropped
	// only if ctx has ended.
	Call(ctx context.Context, t tool.Caller, idx int, p tool.Planned) tool.Outcome
	// Preview does the part of a planned call of a browser skill that comes before its approval.
	// It returns nil when the approval can open, else the outcome of the call. It may be called
	// again after a crash. The answer is dropped only if ctx has ended.
	Preview(ctx context.Context, t tool.Caller, idx int, p tool.Planned) *tool.Outcome
}

// Effects.
type (
	// AcquireSlot requests a slot.
	AcquireSlot struct {
		Run       id.RunID
		CreatedAt time.Time
	}
	// Walk takes ends of nodes through the graph.
	Walk struct {
		N     int
		Of    *State
		Queue []End
	}
	// FindAgent looks up the published version of the agent of a step.
	FindAgent struct {
		Idx   int
		Agent id.AgentID
	}
	// PlanCall resolves the call of a step.
	PlanCall struct {
		Step *Step
		Of   *State
	}
	// Preview does what comes before the approval of a step's call.
	Preview struct {
		Step *Step
		Of   *State
	}
	// CallTool carries out the call of a step.
	CallTool struct {
		Step *Step
		Of   *State
	}
	// GiveAnswer gives the kept answer of a call that failed.
	GiveAnswer struct{ Step *Step }
	// CancelChild cancels a child of a run that has ended with so many steps, and reads what all
	// its children used.
	CancelChild struct {
		Run   id.RunID
		Steps int
	}
)

// Key is stable over re-performance.
func (AcquireSlot) Key() string { return "slot" }

// Key differs for each walk of an activation.
func (e Walk) Key() string { return "walk/" + strconv.Itoa(e.N) }

// Key is stable over re-performance.
func (e FindAgent) Key() string { return "agent/" + strconv.Itoa(e.Idx) }

// Key is stable over re-performance.
func (e PlanCall) Key() string { return "plan/" + strconv.Itoa(e.Step.Idx) }

// Key is stable over re-performance: a preview that is begun again finds its run.
func (e Preview) Key() string { return "preview/" + strconv.Itoa(e.Step.Idx) }

// Key is stable over re-performance: a call that is sent again has the same key.
func (e CallTool) Key() string { return "tool/" + strconv.Itoa(e.Step.Idx) }

// Key is stable over re-performance.
func (e GiveAnswer) Key() string { return "answer/" + strconv.Itoa(e.Step.Idx) }

// Key is stable over re-performance.
func (e CancelChild) Key() string { return "cancel/" + e.Run.String() }

// perform does the I/O of one effect.
func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	switch e := e.(type) {
	case AcquireSlot:
		if k.cfg.Slots == nil {
			return msg.SlotGranted{}
		}
		k.cfg.Slots.Acquire(a.Address.Tenant, msg.AcquireSlot{Run: e.Run, CreatedAt: e.CreatedAt})
		return nil
	case Walk:
		return k.walk(ctx, e)
	case FindAgent:
		return k.findAgent(ctx, a.Address, e)
	case PlanCall:
		return k.plan(ctx, e)
	case Preview:
		return k.preview(ctx, e)
	case CallTool:
		began := k.cfg.Now()
		m, ok := k.call(ctx, e)
		if !ok {
			return nil
		}
		k.answered(e, began, &m.Outcome)
		m.Walked = k.ahead(ctx, e, &m.Outcome)
		return m
	case GiveAnswer:
		return ToolAnswered{Idx: e.Step.Idx, Outcome: *e.Step.Call.Answer}
	case CancelChild:
		return k.cancelChild(ctx, a.Address, e)
	}
	panic(fmt.Sprintf("workflow: unknown effect %T", e))
}

// soon bounds the time for which a walk waits for the plan of a call. Planning takes one read,
// unless a tool server is asked for its tools.
const soon = 200 * time.Millisecond

// walk takes the ends through the graph. A walk that is not quick begins again behind the other
// slow ones, with one end: they have half of the CPUs, so a definition that is made to be
// expensive does not hold up quick walks, and tenants take turns, so it holds up other tenants' for
// one walk.
//
// A walk that leaves much is forgotten until there is a place for it, and then done again.
//
// If the run then does nothing but one call, the call is planned too, so that one commit ends a
// node and begins the next call. With more nodes at work it is not: an end of theirs would wait
// for it. A call that is not planned here is planned by PlanCall.
func (k *kind) walk(ctx context.Context, e Walk) any {
	m, ok := k.walkOnce(ctx, &e)
	if ok && m.size() >= largeWalk {
		size := m.Flow.Size()
		m = Walked{} // it is not kept while it waits
		ok = k.large.enter(ctx, e.Of.Tenant, e.Of.ID, size)
		if ok {
			m, ok = k.walkOnce(ctx, &e)
		}
	}
	if !ok {
		return nil
	}
	k.planOnly(ctx, e.Of, &m)
	return m
}

// planOnly plans the call that a walk leads to, if it is the only one.
func (k *kind) planOnly(ctx context.Context, s *State, m *Walked) {
	if o := m.onlyCall(s); o != nil {
		ctx, cancel := context.WithTimeout(ctx, k.cfg.soon)
		defer cancel()
		if p, ok := k.plan(ctx, PlanCall{Step: o, Of: s}).(Planned); ok {
			m.Call = &p
		}
	}
}

// ahead takes the end of a call through the graph at once, where the call is all that the run does and
// the walk is quick and small: the answer and what follows from it are one decision. Otherwise it returns
// nil, and the decision on the answer owes a Walk.
func (k *kind) ahead(ctx context.Context, e CallTool, out *tool.Outcome) *Walked {
	s := e.Of
	if out.IsError || len(s.Open) != 1 || len(s.Queue) > 0 {
		return nil
	}
	m, ok := within(ctx, k.quick, k.cfg.quickWalk, s.Plan.Quick(), Walk{N: s.Walks, Of: s, Queue: []End{callEnd(e.Step.Node, out)}})
	if !ok || m.size() >= largeWalk {
		return nil
	}
	k.planOnly(ctx, s, &m)
	return &m
}

// walkOnce walks in the lane that the walk needs. A slow one is left with one end.
func (k *kind) walkOnce(ctx context.Context, e *Walk) (Walked, bool) {
	m, ok := within(ctx, k.quick, k.cfg.quickWalk, e.Of.Plan.Quick(), *e)
	if !ok {
		if ctx.Err() == nil {
			slowWalks.Inc()
		}
		e.Queue = e.Queue[:1]
		m, ok = within(ctx, k.slow, slowWalk, e.Of.Plan, *e)
	}
	return m, ok
}

// onlyCall returns the step of the tool node that this walk started, if no other node is at
// work; else nil. Only walks add steps, so its index is known.
func (m *Walked) onlyCall(s *State) *Step {
	active := m.Flow.Active()
	if m.Failure != nil || m.Fault != "" || len(active) != 1 || s.Plan.Node(active[0]).Type != flow.Tool {
		return nil
	}
	idx := s.Steps
	for i := range m.Parts {
		for _, f := range m.Parts[i].Facts {
			if f.Status != flow.Active {
				continue
			}
			if f.Node == active[0] {
				return &Step{Idx: idx, Node: f.Node, Input: f.Input}
			}
			idx++
		}
	}
	return nil
}

// within walks once it has a place in a lane, for which tenants take turns. It reports false if the walk
// takes longer than limit or the plan allows, or if ctx ends.
func within(ctx context.Context, lane *turn.Places, limit time.Duration, plan *flow.Plan, e Walk) (Walked, bool) {
	if lane.Take(ctx, e.Of.Tenant) != nil {
		return Walked{}, false
	}
	defer lane.Give(e.Of.Tenant)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return through(ctx, plan, e)
}

// through takes the ends through the graph, until one of them fails the run. Package flow bounds the
// work of each. It reports false if that is too much for the plan, or if ctx ends before.
func through(ctx context.Context, plan *flow.Plan, e Walk) (Walked, bool) {
	s, m := e.Of, Walked{N: e.N, Flow: e.Of.Flow}
	for _, end := range e.Queue {
		var facts []flow.Fact
		var err error
		if end.Node == starts {
			var variables map[string]json.RawMessage
			if variables, err = members(s.Variables); err == nil {
				m.Flow, facts, err = plan.Start(ctx, s.Input, variables)
			}
		} else {
			m.Flow, facts, err = plan.End(ctx, m.Flow, end.Node, end.Output)
		}
		if ctx.Err() != nil || errors.Is(err, flow.ErrSlow) {
			return m, false
		}
		p := Part{End: end, Facts: make([]Fact, len(facts))}
		for i, f := range facts {
			p.Facts[i] = Fact{Fact: f}
			if f.Status != flow.Ended || plan.Node(f.Node).Type != flow.Tool { // a call shows what its answer says
				p.Facts[i].Shown = shown(&f)
			}
		}
		m.Parts = append(m.Parts, p)
		if err != nil {
			if !errors.As(err, &m.Failure) {
				m.Fault = err.Error()
			}
			return m, true
		}
	}
	if m.Flow.Done() {
		var err error
		if m.Output, err = s.Plan.Output(m.Flow); err != nil {
			m.Fault = err.Error()
		}
	}
	return m, true
}

// members returns the members of an object, none of an empty text.
func members(doc json.RawMessage) (map[string]json.RawMessage, error) {
	if len(doc) == 0 {
		return nil, nil
	}
	var out map[string]json.RawMessage
	if err := json.Unmarshal(doc, &out); err != nil {
		return nil, fmt.Errorf("read variables: %w", err)
	}
	return out, nil
}

// shown returns what a step shows of a fact.
func shown(f *flow.Fact) json.RawMessage {
	switch f.Status {
	case flow.Active:
		if f.Input == nil {
			return nil
		}
		return redact.JSON(f.Input)
	case flow.Ended:
		return redact.JSON(jsontext.Must(f.Output))
	}
	return nil
}

// findAgent looks up an agent. A child run begins only in a version that is published now.
func (k *kind) findAgent(ctx context.Context, a cluster.Address, e FindAgent) any {
	m := Found{Idx: e.Idx}
	if !k.retry(ctx, a.Tenant, a.ID, func() (err error) {
		m.Version, err = k.cfg.Published(ctx, a.Tenant, e.Agent)
		return err
	}) {
		return nil
	}
	return m
}

func (s *State) caller() tool.Caller {
	return tool.Caller{Tenant: s.Tenant, Run: s.ID, Workflow: &s.Workflow}
}

// plan resolves the call of a step.
func (k *kind) plan(ctx context.Context, e PlanCall) any {
	n := e.Of.Plan.Node(e.Step.Node)
	call := model.Call{ID: n.ID, Name: n.Tool, Args: e.Step.Input}
	if scan.KindOf(call.Args) != scan.Object {
		call.Malformed, call.Args = string(call.Args), json.RawMessage("{}")
	}
	if k.cfg.Tools == nil {
		refused := tool.FailedResult(tool.ErrNotGranted, "This deployment has no tools. Nothing was run.")
		return Planned{e.Step.Idx, tool.Planned{Tool: n.Tool, Refused: &refused}}
	}
	var plan []tool.Planned
	if !k.retry(ctx, e.Of.Tenant, e.Of.ID.UUID, func() (err error) {
		plan, err = k.cfg.Tools.Plan(ctx, e.Of.caller(), e.Step.Idx, []model.Call{call})
		return err
	}) {
		return nil
	}
	return Planned{e.Step.Idx, plan[0]}
}

// Crash points: the call is about to be sent; it was answered, and the answer is not committed.
var (
	pointBeforeCall = failpoint.Declare("workflow.tool_before_call")
	pointAfterCall  = failpoint.Declare("workflow.tool_after_call")
)

var toolsGone = tool.UnsentResult(tool.ErrNotGranted, "This deployment has no tools any more. Nothing was run.")

// preview returns nil if the preview is no longer owed.
func (k *kind) preview(ctx context.Context, e Preview) any {
	out := &toolsGone
	if k.cfg.Tools != nil {
		out = k.cfg.Tools.Preview(ctx, e.Of.caller(), e.Step.Idx, e.Step.Call.Plan)
	}
	if ctx.Err() != nil {
		return nil
	}
	return Previewed{e.Step.Idx, out}
}

// call carries out the call of a step. It reports false if the call is no longer owed.
func (k *kind) call(ctx context.Context, e CallTool) (m ToolAnswered, ok bool) {
	out := toolsGone
	failpoint.Hit(pointBeforeCall)
	if k.cfg.Tools != nil {
		out = k.cfg.Tools.Call(ctx, e.Of.caller(), e.Step.Idx, e.Step.Call.Plan)
	}
	if e.Step.Call.Again {
		out = out.After()
	}
	failpoint.Hit(pointAfterCall)
	return ToolAnswered{Idx: e.Step.Idx, Outcome: out}, ctx.Err() == nil
}

// cancelChild cancels a child run. It ends when the child has ended.
func (k *kind) cancelChild(ctx context.Context, a cluster.Address, e CancelChild) any {
	if !k.retry(ctx, a.Tenant, a.ID, func() error {
		_, err := k.cfg.Actors.Ask(ctx, cluster.Address{Kind: msg.KindRun, Tenant: a.Tenant, ID: e.Run.UUID}, msg.CancelRun{By: msg.By{Actor: msg.System}})
		if errors.Is(err, problem.NotFound("")) {
			return nil
		}
		return err
	}) {
		return nil
	}
	out := ChildGone{Run: e.Run}
	children := make([]id.RunID, 0, e.Steps+1)
	for idx := range e.Steps + 1 {
		children = append(children, child(id.RunID{UUID: a.ID}, idx))
	}
	if !k.retry(ctx, a.Tenant, a.ID, func() error {
		used, err := k.cfg.Store.Used(ctx, a.Tenant, children)
		out.Used = Used(used)
		return err
	}) {
		return nil
	}
	return out
}

// The pause between two tries of a read or an order.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// retry repeats f until it succeeds. It reports false if ctx ends before. No error ends it: a row that
// cannot be read may be read once the cause is gone, and the run can be cancelled until then. So the
// error is logged, at the second try and whenever there were twice as many.
func (k *kind) retry(ctx context.Context, t id.TenantID, run id.UUID, f func() error) bool {
	for wait, tries := firstPause, 1; ; wait, tries = min(2*wait, lastPause), tries+1 {
		err := f()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case tries > 1 && tries&(tries-1) == 0:
			k.cfg.Log.Warn().Err(err).Stringer("tenant", t).Stringer("run", run).Int("tries", tries).Msg("a workflow run waits for storage")
		}
		if !pause.For(ctx, wait) {
			return false
		}
	}
}

// read answers a question of the machine.
func (k *kind) read(ctx context.Context, a cluster.Address, question any) (any, error) {
	if _, ok := question.(ReadApprovals); ok {
		rows, err := k.cfg.Store.NodeApprovals(ctx, a.Tenant, id.RunID{UUID: a.ID})
		if err != nil {
			return nil, err
		}
		return k.approvals(&State{Tenant: a.Tenant, ID: id.RunID{UUID: a.ID}}, rows)
	}
	q, ok := question.(ReadChild)
	if !ok {
		panic(fmt.Sprintf("workflow: unknown question %T", question))
	}
	found, err := k.cfg.Store.Children(ctx, a.Tenant, []id.RunID{q.Run})
	if err != nil || len(found) == 0 {
		return Child{}, err
	}
	c := &found[0]
	return Child{c.Status, c.Output, c.Code, c.Message, c.TokensIn, c.TokensOut, c.CostUSD}, nil
}

var _ Store = (*engine.Store)(nil)
