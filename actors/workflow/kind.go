package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/event"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
	"agentsvc/schemas/webhook"
)

// Config is what workflow runs need.
type Config struct {
	Store  Store
	Live   Live
	Sealer Sealer
	Actors Actors
	// Published returns the published version of an agent; 0 if it has none.
	Published func(ctx context.Context, tenant id.TenantID, agent id.AgentID) (int, error)
	// Ready is the state column of a queued run that waits for no other run.
	Ready []byte
	Tools Tools // nil: tool nodes fail
	Slots Slots // nil: no limit of running runs
	Spans Spans // nil: nothing is told
	// TakeSlot takes a slot for a run that is running, even if none is free; it does not
	// block. Set if Slots is.
	TakeSlot func(id.TenantID, msg.TakeSlot)
	// PublicURL is the service's address: the data of events names the console's pages.
	PublicURL string
	// Hears reports whether the tenant may have a webhook endpoint; it does not block. nil:
	// no tenant has one, and no event is written.
	Hears func(id.TenantID) bool
	// Holder returns the other member that is at work on a run, the zero id if there is none
	// (durable.Holder). nil: there are no other members.
	Holder func(context.Context, cluster.Address) id.MemberID
	Now    func() time.Time // the host's; nil: time.Now
	// EscalateFraction is the part of an approval's time after which it is escalated; default
	// 0.5.
	EscalateFraction float64
	Log              zerolog.Logger

	quickWalk, soon time.Duration // the constants, except in a test
}

const (
	// idle is how long a run that owes nothing stays in memory: what comes next often comes
	// at once.
	idle = time.Second
	// quickWalk ends a quick walk that is still busy with one expression.
	quickWalk = 100 * time.Millisecond
	// slowWalk ends no walk: package flow bounds the work of each end.
	slowWalk = time.Hour
	// createTimeout bounds the read of a definition when a run begins.
	createTimeout = 3 * time.Second
	// defaultEscalateFraction is the value of service.md, Approval status.
	defaultEscalateFraction = 0.5
)

// kind is shared by all activations of workflow runs on a node.
type kind struct {
	cfg   Config
	plans *plans
	quick *turn.Places // of quick walks
	slow  *turn.Places // of those that are not
	large *large
}

func newKind(cfg Config) *kind {
	if cfg.EscalateFraction <= 0 {
		cfg.EscalateFraction = defaultEscalateFraction
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.soon == 0 {
		cfg.quickWalk, cfg.soon = quickWalk, soon
	}
	quick, slow := runtime.GOMAXPROCS(0), max(1, runtime.GOMAXPROCS(0)/2)
	return &kind{cfg: cfg, plans: &plans{read: cfg.Store.Definition, log: cfg.Log, kept: map[version]keptPlan{}},
		quick: turn.New(quick, quick), slow: turn.New(slow, slow), large: newLarge()}
}

// New is the kind workflow.
func New(cfg Config) durable.Kind[State] {
	k := newKind(cfg)
	return durable.Kind[State]{
		Name:     msg.KindWorkflow,
		Machine:  Machine{Slots: k.cfg.Slots != nil},
		Load:     k.load,
		Create:   k.create,
		Rows:     k.rows,
		Read:     k.read,
		After:    k.after,
		Perform:  k.perform,
		Left:     func(a cluster.Address) { k.cfg.Live.Abandon(a.Tenant, id.RunID{UUID: a.ID}) },
		Forget:   func(a cluster.Address) { k.large.left(id.RunID{UUID: a.ID}) },
		Finishes: finishes,
		Idle:     idle,
		// A large run that waits makes room for another one.
		Done: func(s State) bool { return s.Status.Terminal() && len(s.Children) == 0 || s.large() && !s.Owes },
	}
}

// finishes reports whether a node waits for an effect before the run leaves it: for a call, and for a
// walk beside tool nodes. The answer of a call is in no row while its end is walked, or while it is
// queued behind the walk of other ends. A call of a skill only waits for the skill's run, and finds it
// again.
func finishes(e durable.Effect) bool {
	switch e := e.(type) {
	case CallTool:
		return e.Step.Call.Plan.Skill == nil
	case Walk:
		return slices.ContainsFunc(e.Of.Open, func(o *Step) bool { return e.Of.typeOf(o) == flow.Tool })
	}
	return false
}

// create returns the state of a run before StartWorkflow is decided.
func (k *kind) create(a cluster.Address, m any) (State, bool) {
	start, ok := m.(msg.StartWorkflow)
	if !ok || start.Run.UUID != a.ID {
		return State{}, false
	}
	s := State{Tenant: a.Tenant, ID: start.Run}
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	var err error
	if s.Plan, err = k.plans.get(ctx, version{a.Tenant, start.Workflow, start.Version}); err != nil {
		s.Unread = true
		k.cfg.Log.Warn().Err(err).Stringer("tenant", a.Tenant).Stringer("run", s.ID).Msg("definition could not be read for a new run")
	}
	return s, true
}

func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	run := id.RunID{UUID: a.ID}
	if k.large.isKnown(run) && !k.large.load(a.Tenant, run) {
		return durable.Loaded[State]{}, k.large.crowded(run)
	}
	r, err := k.cfg.Store.Workflow(ctx, a.Tenant, run)
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if r == nil {
		return durable.Loaded[State]{}, problem.NotFound("run")
	}
	s := State{
		Tenant: a.Tenant, ID: id.RunID{UUID: a.ID}, Workflow: r.WorkflowID, Version: r.Version, Test: r.Test, Input: r.Input, Variables: r.Variables,
		Origin: msg.Origin{Kind: r.OriginKind, ID: r.OriginID}, EndUserID: r.EndUserID, CreatedAt: r.CreatedAt, Status: r.Status,
		TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: r.CostUSD, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		Seq: r.Seq, Steps: r.Steps, Owes: r.Owes, OrgNode: r.OrgNode, Seen: map[string]bool{}, Heard: len(r.Events),
	}
	if r.ErrorCode != nil && r.ErrorMessage != nil {
		s.Error = &Failure{lifecycle.Failure(*r.ErrorCode), *r.ErrorMessage}
	}
	for _, e := range r.Events {
		s.Seen["op/"+e.Op.String()] = true
		if e.ID != "" {
			s.Seen[seenID(e.ID)] = true
		}
		if !e.Taken {
			s.Events = append(s.Events, Event{e.Seq, e.Name, e.Payload})
		}
	}
	if !s.Status.Terminal() {
		if s.Plan, err = k.plans.get(ctx, version{a.Tenant, r.WorkflowID, r.Version}); err != nil {
			return durable.Loaded[State]{}, err
		}
	}
	if s.Status != lifecycle.RunQueued && !s.Status.Terminal() {
		k.resume(&s, r)
	}
	if s.large() && !k.large.load(a.Tenant, run) {
		return durable.Loaded[State]{}, k.large.crowded(run)
	}
	if k.cfg.Holder != nil && slices.ContainsFunc(s.Open, func(o *Step) bool { return o.Call != nil && o.Call.Called && o.Call.Answer == nil }) {
		if at := k.cfg.Holder(ctx, a); !at.IsZero() {
			return durable.Loaded[State]{}, &durable.Elsewhere{At: at}
		}
	}
	asked, err := k.approvals(&s, r.Approvals)
	if err != nil {
		s.Damage = err.Error()
	}
	for _, o := range s.Open {
		if o.Call == nil || !o.Call.Called {
			o.Approval = asked[o.Idx]
		}
	}
	if err := k.children(ctx, &s, r); err != nil {
		return durable.Loaded[State]{}, err
	}
	// A load means that no activation on this node saw the last commit, so what follows from
	// that commit is done now.
	k.cfg.Live.Abandon(s.Tenant, s.ID)
	if s.Status == lifecycle.RunRunning && k.cfg.TakeSlot != nil {
		k.cfg.TakeSlot(s.Tenant, msg.TakeSlot{Run: s.ID})
	}
	k.release(&s)
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.RowVersion, Epoch: r.Epoch}}, nil
}

// kept is the sealed value of the step of a node that ended: what later nodes read of it. It
// keeps the exact bytes.
type kept struct {
	Output flow.Output `json:"-"`
	Values []byte      `json:"values,omitempty"` // of a set node: what it worked with

	Text  string    `json:"text,omitempty"`
	Child *id.RunID `json:"child_run_id,omitempty"`
	JSON  []byte    `json:"json,omitempty"`
}

// opened is the sealed value of an open step. Input is left out once a call is planned: the plan has
// the arguments.
type opened struct {
	Input []byte      `json:"input,omitempty"`
	Text  string      `json:"text,omitempty"`
	Call  *sealedCall `json:"call,omitempty"`
}

// sealedCall is a planned call. It keeps the exact bytes that are sent and shown: as JSON values
// they would be encoded anew.
type sealedCall struct {
	tool.Planned
	Args   []byte        `json:"args"`
	Shown  []byte        `json:"shown,omitempty"`
	Called bool          `json:"called,omitempty"`
	Answer *tool.Outcome `json:"answer,omitempty"`
}

// sealStep seals the value of an open step.
func (k *kind) sealStep(s *State, o *Step) []byte {
	v := opened{Input: o.Input, Text: o.Text}
	if c := o.Call; c != nil {
		v.Input = nil
		v.Call = &sealedCall{Planned: c.Plan, Args: c.Plan.Args, Shown: c.Plan.Shown, Called: c.Called, Answer: c.Answer}
		if !o.previews() {
			v.Call.Schema = nil // only an approval needs it, whose row has it
		}
	}
	return k.seal(s, o.Idx, v)
}

// sealKept seals the value of a step that ended.
func (k *kind) sealKept(s *State, idx int, v *kept) []byte {
	v.Text, v.Child, v.JSON = v.Output.Text, v.Output.ChildRunID, v.Output.JSON
	return k.seal(s, idx, v)
}

// resume restores the walk and the open steps of a run from its rows.
func (k *kind) resume(s *State, r *engine.Workflow) {
	damaged := func(err error) {
		if err != nil && s.Damage == "" {
			s.Damage = err.Error()
		}
	}
	data := flow.Data{Input: r.Input, Variables: map[string]json.RawMessage{}, Outputs: map[string]flow.Output{}}
	if s.Plan != nil {
		maps.Copy(data.Variables, s.Plan.Definition().Variables)
	}
	first, err := members(r.Variables)
	damaged(err)
	maps.Copy(data.Variables, first)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		node := starts
		if s.Plan != nil {
			var ok bool
			if node, ok = s.Plan.Index(n.Name); !ok {
				node = starts
				damaged(fmt.Errorf("step %d is of an unknown node", n.Idx))
			}
		}
		switch n.Status {
		case lifecycle.StepRunning, lifecycle.StepWaiting:
			var v opened
			damaged(k.open(s, n, &v))
			o := &Step{Idx: n.Idx, Node: node, Seq: n.BeganSeq, Input: v.Input, Text: v.Text}
			if c := v.Call; c != nil {
				o.Call = &Call{Plan: c.Planned, Called: c.Called, Again: c.Called, Answer: c.Answer}
				o.Call.Plan.Args, o.Call.Plan.Shown = c.Args, c.Shown
			}
			s.Open = append(s.Open, o)
		case lifecycle.StepSucceeded:
			var v kept
			damaged(k.open(s, n, &v))
			data.Outputs[n.Name] = flow.Output{Text: v.Text, ChildRunID: v.Child, JSON: v.JSON}
			if len(v.Values) > 0 {
				var set struct {
					Values map[string]json.RawMessage `json:"values"`
				}
				damaged(json.Unmarshal(v.Values, &set))
				maps.Copy(data.Variables, set.Values)
			}
		}
	}
	if s.Plan == nil || s.Damage != "" {
		return
	}
	if r.Progress == nil {
		damaged(fmt.Errorf("a run that began has no progress"))
		return
	}
	s.Flow, err = s.Plan.Resume(*r.Progress, data)
	damaged(err)
}

// children reads which child runs are there: of open steps, or to be cancelled.
func (k *kind) children(ctx context.Context, s *State, r *engine.Workflow) error {
	var ids []id.RunID
	switch {
	case s.Status.Terminal() && s.Owes:
		for i := range r.Nodes {
			ids = append(ids, child(s.ID, r.Nodes[i].Idx))
		}
	case !s.Status.Terminal():
		for _, o := range s.Open {
			if t := s.typeOf(o); t == flow.Agent || t == "" {
				ids = append(ids, child(s.ID, o.Idx))
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	found, err := k.cfg.Store.Children(ctx, s.Tenant, ids)
	if err != nil {
		return err
	}
	for i := range found {
		// One that has ended is asked too: only its cancel clears what is owed.
		if s.Status.Terminal() {
			s.Children = append(s.Children, found[i].ID)
			continue
		}
		for _, o := range s.Open {
			o.Begun = o.Begun || child(s.ID, o.Idx) == found[i].ID
		}
	}
	return nil
}

func (k *kind) open(s *State, n *engine.NodeStep, v any) error {
	if len(n.Sealed) == 0 {
		return nil
	}
	plain, err := k.cfg.Sealer.Open(engine.StepAt(s.Tenant, s.ID, n.Idx), n.Sealed)
	if err != nil {
		return fmt.Errorf("open step %d: %w", n.Idx, err)
	}
	if err := json.Unmarshal(plain, v); err != nil {
		return fmt.Errorf("read step %d: %w", n.Idx, err)
	}
	return nil
}

func (k *kind) seal(s *State, idx int, v any) []byte {
	sealed, err := k.cfg.Sealer.Seal(engine.StepAt(s.Tenant, s.ID, idx), jsontext.Must(v))
	if err != nil {
		panic(err) // sealing only needs randomness
	}
	return sealed
}

// rows returns the commit of a decision. One without facts has none.
func (k *kind) rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, op id.OpID, now time.Time) *journal.Commit {
	if len(d.Facts) == 0 {
		return nil
	}
	s, w := &d.Next, &journal.Commit{}
	if prev.Guard.Version == 0 {
		k.accept(w, s, m, now)
		return w
	}
	run := &engine.RunUpdate{
		ID: s.ID, Guard: prev.Guard, Status: s.Status, Output: s.Output, TokensIn: s.TokensIn, TokensOut: s.TokensOut, CostUSD: s.CostUSD,
		StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, Seq: s.Seq, Steps: s.Steps,
	}
	if s.Error != nil {
		code := string(s.Error.Code)
		run.ErrorCode, run.ErrorMessage = &code, &s.Error.Message
	}
	w.Rows = append(w.Rows, run)
	if progress := s.progress(&prev.State); progress != nil || s.Owes != prev.State.Owes {
		w.Rows = append(w.Rows, &engine.WorkflowUpdate{Run: s.ID, Progress: progress, Owes: s.Owes})
	}
	for i, f := range d.Facts {
		if seq, t, data := s.mark(f); seq > 0 {
			w.Rows = append(w.Rows, &engine.Mark{Run: s.ID, Seq: seq, Type: string(t), Data: data})
		}
		if _, ended := f.(Ended); ended {
			tally := engine.RunTally(run, nil, nil)
			tally.TokensIn, tally.TokensOut, tally.CostUSD = 0, 0, 0 // its child runs count them
			w.Rows = append(w.Rows, tally)
		}
		switch {
		case i > 0 && atOnce(d.Facts[i-1], f): // its row is that of the beginning
		case i+1 < len(d.Facts) && atOnce(f, d.Facts[i+1]):
			w.Rows = append(w.Rows, k.whole(s, f.(NodeBegan), d.Facts[i+1].(NodeEnded), now))
		default:
			k.row(w, s, f, m, op, now)
		}
	}
	return w
}

// atOnce reports whether two facts are the beginning and the end of one step, as of every node
// without I/O.
func atOnce(f, next any) bool {
	began, ok := f.(NodeBegan)
	ended, also := next.(NodeEnded)
	return ok && also && began.Step == ended.Step
}

// whole returns the row of a step that begins and ends in one commit.
func (k *kind) whole(s *State, began NodeBegan, ended NodeEnded, now time.Time) journal.Row {
	n := s.Plan.Node(began.Step.Node)
	row := &engine.StepWhole{
		Run: s.ID, Idx: began.Step.Idx, Kind: stepKind(n.Type), Name: n.ID, Status: ended.Status, Input: began.Shown, Output: ended.Shown, BeganSeq: began.Step.Seq, At: now,
	}
	if ended.Kept != nil {
		row.Sealed = k.sealKept(s, began.Step.Idx, ended.Kept)
	} else {
		row.Sealed = k.sealStep(s, began.Step)
	}
	return row
}

// progress returns how far the run is in its graph; nil if that is as in the row.
func (s *State) progress(prev *State) *string {
	if s.Plan == nil || s.Status == lifecycle.RunQueued || s.Damage != "" {
		return nil
	}
	p := s.Flow.Progress()
	if prev.Status != lifecycle.RunQueued && prev.Flow.Progress() == p {
		return nil
	}
	return &p
}

// row adds the rows of one fact.
func (k *kind) row(w *journal.Commit, s *State, f any, m any, op id.OpID, now time.Time) {
	switch f := f.(type) {
	case NodeBegan:
		n := s.Plan.Node(f.Step.Node)
		w.Rows = append(w.Rows, &engine.StepInsert{
			Run: s.ID, Idx: f.Step.Idx, Kind: stepKind(n.Type), Name: n.ID, Status: f.Status, Input: f.Shown,
			Sealed: k.sealStep(s, f.Step), BeganSeq: f.Step.Seq, StartedAt: now,
		})
	case NodeEnded:
		u := &engine.StepUpdate{Run: s.ID, Idx: f.Step.Idx, Status: f.Status, Output: f.Shown, TokensIn: f.TokensIn, TokensOut: f.TokensOut, CostUSD: f.CostUSD, FinishedAt: now}
		if v := f.Kept; v != nil {
			u.Sealed = k.sealKept(s, f.Step.Idx, v)
		}
		w.Rows = append(w.Rows, u)
	case TimerSet:
		w.Timers = append(w.Timers, journal.Timer{TimerKey: s.timer(f.Name), DueAt: f.Due})
	case TimerGone:
		w.TimersDone = append(w.TimersDone, s.timer(f.Name))
	case EventKnown:
		keepEvent(w, m, now)
	case EventCame:
		keepEvent(w, m, now)
		if event, ok := m.(msg.InjectEvent); ok && event.By.Actor != "" {
			w.Audit = append(w.Audit, engine.RunAudit(s.ID, event.By, "run.event.create", now))
		}
		w.Rows = append(w.Rows, &engine.EventInsert{Run: s.ID, Seq: f.Event.Seq, Op: f.Op, ID: f.ID, Name: f.Event.Name, Payload: f.Event.Payload, At: now})
	case EventTaken:
		w.Rows = append(w.Rows, &engine.EventTake{Run: s.ID, Seq: f.Seq, Idx: f.Idx})
	case ChildBegan:
		w.Rows = append(w.Rows, &engine.RunInsert{
			ID: f.Run, AgentID: &f.Agent, AgentVersion: &f.Version, ParentRunID: &s.ID, Input: f.Step.Input,
			OriginKind: lifecycle.OriginWorkflow, OriginID: s.ID.UUID, EndUserID: s.EndUserID, CreatedAt: f.At, State: k.cfg.Ready,
		})
	case ChildEnded:
		w.TimersDone = append(w.TimersDone, s.timer(msg.ChildTimer(f.Run)))
	case Ended:
		k.reportEnd(w, s, now)
	case CallPrepares:
		w.Rows = append(w.Rows, &engine.StepCall{Run: s.ID, Idx: f.Step.Idx, Input: f.Step.Call.Plan.Shown, Sealed: k.sealStep(s, f.Step)})
	case CallGated:
		w.Rows = append(w.Rows, &engine.StepCall{Run: s.ID, Idx: f.Step.Idx, Status: lifecycle.StepWaiting, Input: f.Step.Call.Plan.Shown, Sealed: k.sealStep(s, f.Step)})
	case StepCalled: // its frame is a mark: the name of the step is not that of the tool
		if f.Began { // its row is that of NodeBegan
			return
		}
		w.Rows = append(w.Rows, &engine.StepCall{Run: s.ID, Idx: f.Step.Idx, Input: f.Step.Call.Plan.Shown, Sealed: k.sealStep(s, f.Step)})
	case CallAnswered:
		w.Rows = append(w.Rows, &engine.StepCall{Run: s.ID, Idx: f.Step.Idx, Sealed: k.sealStep(s, f.Step)})
	case Asked:
		k.asks(w, s, f, now)
	case WakeGone:
		w.TimersDone = append(w.TimersDone, engine.WakeTimer(s.ID, f.Approval))
	case Withdrawn:
		k.withdraw(w, s, f, m, op, now)
	case SkillsLeft:
		engine.SkillTimers(w, f.Runs, now)
	case Stopped:
		if cancel, ok := m.(msg.CancelRun); ok {
			w.Idempotency = journal.Remember(cancel.Idempotency, now)
			w.Audit = append(w.Audit, engine.RunAudit(s.ID, cancel.By, "run.cancel", now))
		}
	}
}

// keepEvent keeps the answer to an event under its Idempotency-Key.
func keepEvent(w *journal.Commit, m any, now time.Time) {
	if event, ok := m.(msg.InjectEvent); ok {
		w.Idempotency = journal.Remember(event.Idempotency, now)
	}
}

func (s *State) timer(name string) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindWorkflow, Entity: s.ID.UUID, Name: name}
}

// accept adds the rows of a run that begins.
func (k *kind) accept(w *journal.Commit, s *State, m any, now time.Time) {
	w.New = true
	w.Rows = append(w.Rows,
		&engine.RunInsert{ID: s.ID, WorkflowID: &s.Workflow, Input: s.Input, OriginKind: s.Origin.Kind, OriginID: s.Origin.ID, EndUserID: s.EndUserID, CreatedAt: s.CreatedAt},
		&engine.WorkflowInsert{Run: s.ID, Version: s.Version, Test: s.Test, Variables: s.Variables, Node: s.OrgNode, Owes: s.Owes})
	if start, ok := m.(msg.StartWorkflow); ok {
		engine.Started(w, s.ID, s.Origin, start.By, start.Idempotency, now)
	}
}

// reportEnd reports the end of a run that is no test.
func (k *kind) reportEnd(w *journal.Commit, s *State, now time.Time) {
	if s.Test || !k.hears(s) {
		return
	}
	workflow := s.Workflow.String()
	data := webhook.RunEnded{
		RunID: s.ID.String(), WorkflowID: &workflow, Status: string(s.Status), Output: s.Output,
		TokensIn: s.TokensIn, TokensOut: s.TokensOut, CostUSD: s.CostUSD, FinishedAt: journal.Kept(*s.FinishedAt),
	}
	t := webhook.RunCompleted
	if s.Error != nil {
		t, data.Code, data.Message = webhook.RunFailed, string(s.Error.Code), s.Error.Message
	}
	w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), t, data, now))
}

// after publishes the facts, tells children to begin and runs of browser skills that their run has
// ended, and releases the slot of a run that has ended.
func (k *kind) after(a cluster.Address, prev, next State, d durable.Decision[State]) {
	next.count(d.Facts)
	if next.Walks != prev.Walks || next.Status.Terminal() {
		k.large.walked(&next)
	}
	if next.Seq > prev.Seq {
		facts := d.Facts
		k.cfg.Live.PublishFunc(a.Tenant, next.ID, next.Seq, next.Status.Terminal(), func() []*event.Frame { return next.frames(facts) })
	}
	for _, f := range d.Facts {
		switch f := f.(type) {
		case SkillsLeft:
			for _, r := range f.Runs {
				k.cfg.Actors.Tell(cluster.Address{Kind: msg.KindSkillRun, Tenant: a.Tenant, ID: r.UUID}, msg.LookSkill{})
			}
		case ChildBegan:
			k.cfg.Actors.Tell(cluster.Address{Kind: msg.KindRun, Tenant: a.Tenant, ID: f.Run.UUID}, msg.Proceed{Accepted: &msg.Accepted{
				Run: f.Run, AgentID: f.Agent, AgentVersion: f.Version, Input: f.Step.Input,
				Origin: msg.Origin{Kind: lifecycle.OriginWorkflow, ID: next.ID.UUID}, EndUserID: next.EndUserID, CreatedAt: f.At, Parent: &next.ID, State: k.cfg.Ready,
			}})
		}
	}
	if prev.Status == lifecycle.RunWaitingApproval && next.Status == lifecycle.RunRunning && k.cfg.TakeSlot != nil {
		k.cfg.TakeSlot(a.Tenant, msg.TakeSlot{Run: next.ID})
	}
	if next.Status == lifecycle.RunFailed && !prev.Status.Terminal() {
		e := k.cfg.Log.Warn()
		if next.Damage != "" {
			e = k.cfg.Log.Error().Str("cause", next.Damage)
		}
		e.Stringer("tenant", next.Tenant).Stringer("run", next.ID).Stringer("workflow", next.Workflow).Str("code", string(next.Error.Code)).Msg("workflow run failed")
	}
	k.ends(&prev, &next)
	k.release(&next)
}

// release releases the slot of a run that has ended or waits for people. The message is idempotent.
func (k *kind) release(s *State) {
	if k.cfg.Slots != nil && (s.Status.Terminal() || s.Status == lifecycle.RunWaitingApproval) {
		k.cfg.Slots.Release(s.Tenant, msg.ReleaseSlot{Run: s.ID})
	}
}

// mark returns the mark of a fact that has no row of its own, seq 0 for any other fact.
func (s *State) mark(f any) (seq int64, t event.Type, data json.RawMessage) {
	completed := func(seq int64, node int, status string, child *id.RunID) (int64, event.Type, json.RawMessage) {
		n := s.Plan.Node(node)
		return seq, event.NodeCompleted, event.NodeCompletedData(n.ID, string(n.Type), status, child)
	}
	switch f := f.(type) {
	case NodeBegan:
		n := s.Plan.Node(f.Step.Node)
		return f.Started, event.NodeStarted, event.NodeStartedData(n.ID, string(n.Type))
	case NodePaused:
		return completed(f.Seq, f.Step.Node, "waiting", nil)
	case Asked:
		return f.Seq, event.ApprovalRequired, event.RequiredData(f.Approval.ID, f.Approval.Tool, f.Approval.ExpiresAt)
	case StepCalled:
		p := &f.Step.Call.Plan
		return f.Seq, event.ToolCalled, event.CalledData(f.Step.Idx, p.Tool, p.Shown)
	case CallEnded:
		return f.Seq, event.ToolResult, event.ResultedData(f.Step.Idx, f.OK, f.Shown)
	case Waits:
		return f.Seq, event.RunWaiting, event.WaitingData()
	case Resumed:
		return f.Seq, event.RunResumed, event.ResumedData(f.ID, f.Decision)
	case NodeSkipped:
		return completed(f.Seq, f.Node, "skipped", nil)
	case NodeEnded:
		if f.Seq > 0 {
			return completed(f.Seq, f.Step.Node, string(f.Status), f.Child)
		}
	}
	return 0, "", nil
}

// frames returns the facts of a decision as frames for its readers.
func (s *State) frames(facts []any) []*event.Frame {
	out := make([]*event.Frame, 0, 2*len(facts))
	for _, f := range facts {
		switch f := f.(type) {
		case Began:
			out = append(out, event.Started(s.ID, nil))
		case NodeBegan:
			n := s.Plan.Node(f.Step.Node)
			out = append(out, event.StepBegan(f.Step.Seq, f.Step.Idx, stepKind(n.Type), n.ID))
		case Ended:
			if s.Status == lifecycle.RunSucceeded {
				out = append(out, event.Completed(s.Seq, s.Output, s.TokensIn, s.TokensOut, s.CostUSD))
			} else {
				out = append(out, event.Failed(s.Seq, string(s.Error.Code), s.Error.Message))
			}
		}
		if seq, t, data := s.mark(f); seq > 0 {
			out = append(out, event.Marked(seq, t, data))
		}
	}
	return out
}
