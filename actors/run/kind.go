package run

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

// Config is what runs need.
type Config struct {
	Store       Store
	Models      Models
	Live        Live
	Sealer      Sealer
	Tell        Teller
	Attachments Attachments // nil: their content is not shown to models
	Artifacts   Artifacts   // nil: no deliverable can be made
	Tools       Tools       // nil: no agent has tools
	Retriever   Retriever   // nil: runs with evidence fail
	Spans       Spans       // nil: nothing is told
	Slots       Slots       // nil: no limit of running runs
	// TakeSlot takes a slot for a run that resumes after its approvals, even if none is
	// free; it does not block. Set if Slots is.
	TakeSlot func(id.TenantID, msg.TakeSlot)
	// PublicURL is the service's address: the data of events names the console's pages.
	PublicURL string
	// Hears reports whether the tenant may have a webhook endpoint; it does not block. nil:
	// no tenant has one, and no event is written.
	Hears func(id.TenantID) bool
	// Holder returns the other member that is at work on a run, the zero id if there is
	// none (durable.Holder). nil: there are no other members.
	Holder func(context.Context, cluster.Address) id.MemberID
	// EscalateFraction is the part of an approval's time after which it is
	// escalated; default 0.5.
	EscalateFraction float64
	Now              func() time.Time // the host's
	Log              zerolog.Logger
}

const (
	// idle is how long a queued run stays in memory.
	idle = 5 * time.Second
	// createTimeout bounds the read of a manifest when a run begins.
	createTimeout = 3 * time.Second
	// maxRendering is how many deliverables a node renders at a time, one of each tenant.
	maxRendering = 2
	// defaultEscalateFraction is the value of service.md, Approval status.
	defaultEscalateFraction = 0.5
)

// kind is shared by all activations of runs on a node.
type kind struct {
	cfg      Config
	agents   agents
	speaking sync.Map // id.RunID to the *speech of its open model step
	// rendering are the node's places for rendering deliverables, requests those for large requests.
	rendering, requests *turn.Places
	answers             answers
}

// New is the kind run. Its effects last as long as a model's turn, so the host's
// Config.MaxEffects is the number of turns that a node asks at a time.
func New(cfg Config) durable.Kind[State] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.EscalateFraction <= 0 {
		cfg.EscalateFraction = defaultEscalateFraction
	}
	k := &kind{cfg: cfg, agents: newAgents(&cfg), rendering: turn.New(maxRendering, 1), requests: turn.New(requestPlaces, requestEach), answers: answers{held: map[id.RunID]map[int]func(){}}}
	return durable.Kind[State]{
		Name:    msg.KindRun,
		Machine: Machine{Slots: cfg.Slots != nil},
		Load:    k.load,
		Seed:    k.seed,
		Create:  k.create,
		Rows:    k.rows,
		After:   k.after,
		Perform: k.perform,
		Late:    late,
		Forget: func(a cluster.Address) {
			k.speaking.Delete(id.RunID{UUID: a.ID})
			k.answers.forget(id.RunID{UUID: a.ID})
		},
		Shift: shift,
		Idle:  idle,
		Left:  func(a cluster.Address) { k.cfg.Live.Abandon(a.Tenant, id.RunID{UUID: a.ID}) },
		Finishes: func(e durable.Effect) bool {
			switch e := e.(type) {
			case ToolCall:
				return e.Call.Plan.Skill == nil // a call of a skill only waits for the skill's run, and finds it again
			case ModelCall, Retrieve, Deliver:
				return true
			}
			return false
		},
		Done: func(s State) bool { return s.Status.Terminal() || s.Status == lifecycle.RunWaitingApproval },
	}
}

func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, err := k.cfg.Store.Run(ctx, a.Tenant, id.RunID{UUID: a.ID})
	switch {
	case err != nil:
		return durable.Loaded[State]{}, err
	case r != nil && r.AgentID == nil:
		return durable.Loaded[State]{}, &durable.Other{Kind: msg.KindWorkflow}
	}
	if k.cfg.Holder != nil && underWay(r) {
		if at := k.cfg.Holder(ctx, a); !at.IsZero() {
			return durable.Loaded[State]{}, &durable.Elsewhere{At: at}
		}
	}
	l, err := k.read(ctx, a, r)
	if err == nil {
		// A load means that no activation on this node saw the last commit, so what
		// follows from that commit is done now.
		k.cfg.Live.Abandon(l.State.Tenant, l.State.ID)
		if l.State.Status == lifecycle.RunRunning && k.cfg.TakeSlot != nil && l.State.Parent == nil {
			k.cfg.TakeSlot(l.State.Tenant, msg.TakeSlot{Run: l.State.ID})
		}
		k.release(&l.State)
	}
	return l, err
}

// underWay reports whether another member may be asking a model or calling a tool for the
// run. A new activation would abandon that.
func underWay(r *engine.Run) bool {
	return r != nil && r.Status == lifecycle.RunRunning &&
		slices.ContainsFunc(r.Open, func(s engine.OpenStep) bool { return s.Status == lifecycle.StepRunning })
}

// read returns the state of a run's rows.
func (k *kind) read(ctx context.Context, a cluster.Address, r *engine.Run) (durable.Loaded[State], error) {
	if r == nil || r.AgentID == nil || r.AgentVersion == nil {
		return durable.Loaded[State]{}, problem.NotFound("run")
	}
	kept, err := DecodeKept(r.State)
	if err != nil && !errors.Is(err, errDamaged) {
		return durable.Loaded[State]{}, err
	}
	s := State{
		Tenant: a.Tenant, ID: id.RunID{UUID: a.ID}, AgentID: *r.AgentID, AgentVersion: *r.AgentVersion, ThreadID: r.ThreadID, Parent: r.ParentRunID,
		Input: r.Input, Origin: msg.Origin{Kind: r.OriginKind, ID: r.OriginID}, EndUserID: r.EndUserID, CreatedAt: r.CreatedAt,
		Status: r.Status, Output: r.Output, TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: r.CostUSD,
		StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Seq: r.Seq, Steps: r.Steps, Kept: kept, Known: r.Steps == 0,
	}
	if r.ThreadSeq != nil {
		s.ThreadSeq = *r.ThreadSeq
	}
	if r.ErrorCode != nil && r.ErrorMessage != nil {
		s.Error = &Failure{Code: lifecycle.Failure(*r.ErrorCode), Message: *r.ErrorMessage}
	}
	if !s.Status.Terminal() {
		s.damaged(err)
		speaker, v := s.speaker()
		if s.Agent, err = k.agents.ready(ctx, version{a.Tenant, *speaker, *v}); err != nil {
			return durable.Loaded[State]{}, err
		}
		for i := range r.Open {
			step := &r.Open[i]
			if step.Kind == lifecycle.StepLLM || step.Kind == lifecycle.StepRetrieval && s.owesEvidence() {
				s.Open = &OpenStep{Idx: step.Idx, Kind: step.Kind, Seq: step.BeganSeq}
				continue
			}
			s.Calls = append(s.Calls, k.loadCall(&s, step))
		}
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// seed returns the run that its thread has just committed. It is not used for the first run of
// a version on this node, because that has to read the manifest.
func (k *kind) seed(a cluster.Address, m any) (durable.Loaded[State], bool) {
	p, ok := m.(msg.Proceed)
	if !ok || p.Accepted == nil || p.Accepted.Run.UUID != a.ID {
		return durable.Loaded[State]{}, false
	}
	ag, ok := k.agents.Get(version{a.Tenant, p.Accepted.AgentID, p.Accepted.AgentVersion})
	if !ok {
		return durable.Loaded[State]{}, false
	}
	s, err := FromAccepted(a.Tenant, p.Accepted, ag)
	if err != nil {
		return durable.Loaded[State]{}, false
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: 1}}, true
}

// create returns the state of a run without a thread before StartOne is decided.
func (k *kind) create(a cluster.Address, m any) (State, bool) {
	start, ok := m.(msg.StartOne)
	if !ok || start.Run.UUID != a.ID {
		return State{}, false
	}
	s := State{Tenant: a.Tenant, ID: start.Run}
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	var err error
	if s.Agent, err = k.agents.ready(ctx, version{a.Tenant, start.AgentID, start.AgentVersion}); err != nil {
		s.Unread = true
		k.cfg.Log.Warn().Err(err).Stringer("tenant", a.Tenant).Stringer("run", s.ID).Msg("manifest could not be read for a new run")
	}
	return s, true
}

// rows returns the commit of a decision, with everything that the decision makes durable. It
// starts no I/O.
func (k *kind) rows(_ cluster.Address, prev durable.Loaded[State], d durable.Decision[State], m any, op id.OpID, now time.Time) *journal.Commit {
	s := &d.Next
	w := &journal.Commit{Rows: make([]journal.Row, 0, 1+len(d.Facts))}
	if prev.Guard.Version == 0 {
		k.accept(w, s, m, now)
		return w
	}
	run := &engine.RunUpdate{
		ID: s.ID, Guard: prev.Guard, Status: s.Status, Output: s.Output, TokensIn: s.TokensIn, TokensOut: s.TokensOut, CostUSD: s.CostUSD,
		StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, Seq: s.Seq, Steps: s.Steps, State: s.Encode(),
	}
	if s.Error != nil {
		code := string(s.Error.Code)
		run.ErrorCode, run.ErrorMessage = &code, &s.Error.Message
	}
	if _, ok := m.(ToolAnswered); ok {
		failpoint.Hit(pointBeforeResult)
	}
	switch m.(type) {
	case Retrieved:
		failpoint.Hit(pointRetrieved)
	case ModelAnswered:
		if s.AskedAgain && !prev.State.AskedAgain {
			failpoint.Hit(pointUncited)
		}
	}
	w.Rows = append(w.Rows, run)
	for _, f := range d.Facts {
		if seq, t, data := mark(f); seq > 0 {
			w.Rows = append(w.Rows, &engine.Mark{Run: s.ID, Seq: seq, Type: string(t), Data: data})
		}
		switch f := f.(type) {
		case StepBegan:
			w.Rows = append(w.Rows, k.began(s, f, now))
		case StepCalled:
			w.Rows = append(w.Rows, k.called(s, f))
		case Asked:
			k.asks(w, s, f, now)
		case Resumed:
			w.TimersDone = append(w.TimersDone, engine.WakeTimer(s.ID, f.Approval))
		case TimerDone:
			w.TimersDone = append(w.TimersDone, engine.WakeTimer(s.ID, f.Approval))
		case Waits:
			k.wakeParent(w, s, now)
		case SkillsLeft:
			engine.SkillTimers(w, f.Runs, now)
		case Withdrawn:
			k.withdraw(w, s, f, m, op, now)
		case StepEnded:
			w.Rows = append(w.Rows, k.ended(s, f, now))
			if f.Kind == lifecycle.StepLLM && f.TokensIn+f.TokensOut > 0 {
				w.Usage = append(w.Usage, usage(s, f, now))
			}
		case Made:
			w.Rows = append(w.Rows, made(s, f.Artifact, now))
		case Ended:
			w.Rows = append(w.Rows, engine.RunTally(run, &s.AgentID, s.firstText()))
			k.reportEnd(w, s, now)
			k.wakeParent(w, s, now)
			if s.Status == lifecycle.RunSucceeded && s.ThreadID != nil {
				w.Rows = append(w.Rows, &engine.MessageInsert{
					Thread: *s.ThreadID, Seq: s.ThreadSeq + 1, ID: id.MessageID{UUID: id.New(s.ID.Shard())},
					Role: string(model.Assistant), Content: f.Reply, Citations: showCitations(f.Citations), Run: &s.ID, CreatedAt: now,
				})
			}
		case Stopped:
			if cancel, ok := m.(msg.CancelRun); ok {
				w.Idempotency = journal.Remember(cancel.Idempotency, now)
				w.Audit = append(w.Audit, engine.RunAudit(s.ID, cancel.By, "run.cancel", now))
			}
		}
	}
	return w
}

// parentAfter is how long after the end of a child run the timer of its parent is due. The
// parent deletes it when it has heard of the end.
const parentAfter = time.Second

// wakeParent sets the timer by which the parent of a child run learns that it has ended or
// waits for people.
func (k *kind) wakeParent(w *journal.Commit, s *State, now time.Time) {
	if s.Parent != nil {
		key := journal.TimerKey{Kind: msg.KindWorkflow, Entity: s.Parent.UUID, Name: msg.ChildTimer(s.ID)}
		w.Timers = append(w.Timers, journal.Timer{TimerKey: key, DueAt: now.Add(parentAfter)})
	}
}

// accept adds the rows of a run that begins without a thread.
func (k *kind) accept(w *journal.Commit, s *State, m any, now time.Time) {
	w.New = true
	w.Rows = append(w.Rows, &engine.RunInsert{
		ID: s.ID, AgentID: &s.AgentID, AgentVersion: &s.AgentVersion, Input: s.Input, OriginKind: s.Origin.Kind, OriginID: s.Origin.ID,
		EndUserID: s.EndUserID, CreatedAt: s.CreatedAt, State: s.Encode(),
	})
	if start, ok := m.(msg.StartOne); ok {
		engine.Started(w, s.ID, s.Origin, start.By, start.Idempotency, now)
	}
}

func (k *kind) began(s *State, f StepBegan, now time.Time) *engine.StepInsert {
	agent, version := s.speaker()
	n := &engine.StepInsert{
		Run: s.ID, Idx: f.Idx, Kind: f.Kind, Name: f.Name, Status: f.Status, Input: f.Input, AgentID: agent, AgentVersion: version,
		Withheld: f.Kind == lifecycle.StepLLM && s.Agent.Manifest.WithholdsDeltas(), BeganSeq: f.Seq, StartedAt: now,
	}
	if called := f.Called; called > 0 {
		n.CalledSeq = &called
	}
	if f.call != nil {
		n.Sealed = k.sealCall(s, f.call)
	}
	return n
}

func (k *kind) called(s *State, f StepCalled) *engine.StepCall {
	n := &engine.StepCall{Run: s.ID, Idx: f.Call.Idx, CalledSeq: f.Called}
	if f.Called == 0 {
		n.CalledSeq = f.Call.Began // a handoff has no tool.called: any number says that it has begun
	}
	if f.Edited {
		n.Input, n.Sealed = f.Call.Plan.Shown, k.sealCall(s, f.Call)
	}
	return n
}

func (k *kind) ended(s *State, f StepEnded, now time.Time) *engine.StepUpdate {
	u := &engine.StepUpdate{
		Run: s.ID, Idx: f.Idx, Status: f.Status, Output: f.Output, Segments: f.Segments,
		TokensIn: f.TokensIn, TokensOut: f.TokensOut, CostUSD: f.CostUSD, FinishedAt: now,
	}
	if f.Seq > 0 {
		u.EndedSeq = &f.Seq
	}
	if f.Cut {
		if sp := k.speech(s.ID, f.Idx); sp != nil {
			said := sp.cut()
			u.Output, u.Segments = showSaid(said, f.Failure), said.Segments
		}
	}
	if f.History != nil {
		u.Sealed = k.seal(engine.StepAt(s.Tenant, s.ID, f.Idx), f.History)
	}
	return u
}

// seal seals a value's JSON.
func (k *kind) seal(place vault.AAD, v any) []byte {
	plain, err := json.Marshal(v)
	if err != nil {
		panic(err) // messages and plans that were checked encode
	}
	return k.sealBytes(place, plain)
}

func (k *kind) sealBytes(place vault.AAD, plain []byte) []byte {
	sealed, err := k.cfg.Sealer.Seal(place, plain)
	if err != nil {
		panic(err) // sealing only needs randomness
	}
	return sealed
}

func usage(s *State, f StepEnded, now time.Time) journal.Usage {
	agent, _ := s.speaker()
	u := journal.Usage{
		ID: id.UsageID{UUID: id.New(s.ID.Shard())}, At: now, Kind: lifecycle.UsageLLM, Run: &s.ID, Agent: agent,
		Model: s.Agent.Manifest.Model.Name, TokensIn: f.TokensIn, TokensOut: f.TokensOut, CostUSD: f.CostUSD,
	}
	if f.Estimated {
		u.Detail = json.RawMessage(`{"estimated":true}`)
	}
	return u
}

// after publishes the facts, and takes or releases the slot and tells the thread as the status
// requires.
func (k *kind) after(a cluster.Address, prev, next State, d durable.Decision[State]) {
	k.speeches(next.ID, d.Facts)
	k.answers.committed(next.ID, d.Facts)
	waits, waited := next.Status == lifecycle.RunWaitingApproval, prev.Status == lifecycle.RunWaitingApproval
	switch {
	case waits && !waited:
		failpoint.Hit(pointOpened)
	case waited && next.Status == lifecycle.RunRunning:
		failpoint.Hit(pointResumed)
		if k.cfg.TakeSlot != nil && next.Parent == nil {
			k.cfg.TakeSlot(a.Tenant, msg.TakeSlot{Run: next.ID})
		}
	}
	if next.Seq > prev.Seq {
		facts := d.Facts
		k.cfg.Live.PublishFunc(a.Tenant, next.ID, next.Seq, next.Status.Terminal(), func() []*event.Frame { return frames(&next, facts) })
	}
	if waits { // this activation ends, and the next one may be on another node
		k.cfg.Live.Abandon(a.Tenant, next.ID)
	}
	for _, f := range d.Facts {
		if left, ok := f.(SkillsLeft); ok {
			for _, r := range left.Runs {
				k.cfg.Tell.Tell(cluster.Address{Kind: msg.KindSkillRun, Tenant: a.Tenant, ID: r.UUID}, msg.LookSkill{})
			}
		}
	}
	if next.Status == lifecycle.RunFailed && !prev.Status.Terminal() {
		k.logFailure(&prev, &next, d.Facts)
	}
	k.ends(&prev, &next)
	k.release(&next)
}

// logFailure logs a failed run once, after its commit, with the agent, the code, and the
// provider or the tool servers. Messages may hold users' text, so they are not logged. A
// run whose rows cannot be read is an error that someone must look at.
func (k *kind) logFailure(prev, next *State, facts []any) {
	agent, _ := next.speaker()
	e := k.cfg.Log.Warn()
	if next.Damage != "" {
		e = k.cfg.Log.Error().Str("cause", next.Damage)
	}
	e = k.log(e, next).Stringer("agent", agent).Str("code", string(next.Error.Code))
	if next.Agent != nil {
		e = e.Str("provider", next.Agent.Manifest.Model.Provider)
	}
	var servers []string
	for _, f := range facts {
		ended, ok := f.(StepEnded)
		if !ok || ended.Kind != lifecycle.StepTool || ended.Status == lifecycle.StepSucceeded {
			continue
		}
		for _, c := range prev.Calls {
			server, _, qualified := strings.Cut(c.Plan.Tool, ".")
			if c.Idx == ended.Idx && qualified && c.Plan.Refused == nil && !slices.Contains(servers, server) {
				servers = append(servers, server)
			}
		}
	}
	if len(servers) > 0 {
		e = e.Strs("tool_servers", servers)
	}
	e.Msg("run failed")
}

// release releases the slot of a run that is not running any more, and tells the thread if it
// has ended. A child run has no slot and no thread, and tells its parent. All messages are
// idempotent.
func (k *kind) release(s *State) {
	terminal := s.Status.Terminal()
	if terminal {
		failpoint.Hit(pointEnded)
	}
	rests := terminal || s.Status == lifecycle.RunWaitingApproval
	if k.cfg.Slots != nil && rests && s.Parent == nil {
		k.cfg.Slots.Release(s.Tenant, msg.ReleaseSlot{Run: s.ID})
	}
	if rests && s.Parent != nil {
		k.cfg.Tell.Tell(cluster.Address{Kind: msg.KindWorkflow, Tenant: s.Tenant, ID: s.Parent.UUID}, msg.ChildChanged{Run: s.ID})
	}
	if terminal && s.ThreadID != nil {
		k.cfg.Tell.Tell(cluster.Address{Kind: msg.KindThread, Tenant: s.Tenant, ID: s.ThreadID.UUID}, msg.RunEnded{Run: s.ID})
	}
}

// mark returns the mark of a fact that has no row of its own, seq 0 for any other fact.
func mark(f any) (seq int64, t event.Type, data json.RawMessage) {
	switch f := f.(type) {
	case Asked:
		return f.Seq, event.ApprovalRequired, event.RequiredData(*f.Call.Plan.Approval, f.Call.Plan.Tool, f.Expires)
	case Waits:
		return f.Seq, event.RunWaiting, event.WaitingData()
	case Resumed:
		return f.Seq, event.RunResumed, event.ResumedData(f.Approval, f.Decision)
	case Handoff:
		return f.Seq, event.Handoff, event.HandoffData(f.From, f.To)
	}
	return 0, "", nil
}

// frames returns the facts of a decision as frames for its readers.
func frames(s *State, facts []any) []*event.Frame {
	out := make([]*event.Frame, 0, len(facts)+1)
	for _, f := range facts {
		switch f := f.(type) {
		case Began:
			out = append(out, event.Started(s.ID, &s.AgentID))
		case StepBegan:
			out = append(out, event.StepBegan(f.Seq, f.Idx, f.Kind, f.Name))
			if f.Called > 0 {
				out = append(out, event.Called(f.Called, f.Idx, f.Name, f.Input))
			}
		case StepCalled:
			if f.Called > 0 {
				out = append(out, event.Called(f.Called, f.Call.Idx, problem.CutBytes(f.Call.Plan.Tool, maxName), f.Call.Plan.Shown))
			}
		case StepEnded:
			if f.Kind == lifecycle.StepRetrieval && f.Seq > 0 {
				out = append(out, event.Retrieved(f.Seq, f.Idx, f.Output)...)
			}
			if (f.Kind == lifecycle.StepTool || f.Kind == lifecycle.StepRetrieval) && f.Seq > 0 {
				out = append(out, event.Resulted(f.Seq, f.Idx, f.Status == lifecycle.StepSucceeded, f.Output))
			}
		case Ended:
			if s.Status == lifecycle.RunSucceeded {
				out = append(out, event.Completed(s.Seq, s.Output, s.TokensIn, s.TokensOut, s.CostUSD))
			} else {
				out = append(out, event.Failed(s.Seq, string(s.Error.Code), s.Error.Message))
			}
		default:
			if seq, t, data := mark(f); seq > 0 {
				out = append(out, event.Marked(seq, t, data))
			}
		}
	}
	return out
}

var _ Store = (*engine.Store)(nil)
