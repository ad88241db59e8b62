package run

import (
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// The rows of calls that have not ended, and of their approvals. A run opens its approvals,
// and cancels the pending ones with its end. The actor of an approval writes everything
// in between.

// sealedCall is the sealed value of a call's step until the call has ended. It keeps the exact
// bytes that are sent and shown: as JSON values they would be encoded anew.
type sealedCall struct {
	tool.Planned
	Args      []byte `json:"args"`
	Shown     []byte `json:"shown,omitempty"`     // of a waiting call
	Reasoning string `json:"reasoning,omitempty"` // of a gated call
}

func (k *kind) sealCall(s *State, c *Call) []byte {
	v := sealedCall{Planned: c.Plan, Args: c.Plan.Args}
	if c.Plan.Terms != nil || c.Status == lifecycle.StepWaiting { // shown again when it is called
		v.Shown, v.Reasoning = c.Plan.Shown, c.Reasoning
	}
	if c.Plan.Terms == nil {
		v.Schema = nil // only an approval needs it
	}
	return k.seal(engine.StepAt(s.Tenant, s.ID, c.Idx), v)
}

// loadCall reads a call that has begun and not ended, with its approval. If the sealed
// value does not open, it returns what the row shows and marks the run as damaged.
func (k *kind) loadCall(s *State, step *engine.OpenStep) *Call {
	var v sealedCall
	if err := k.open(s, step.Idx, step.Sealed, &v); err != nil {
		s.damaged(err)
		v = sealedCall{Planned: tool.Planned{Tool: step.Name}}
	}
	c := &Call{Idx: step.Idx, Kind: step.Kind, Began: step.BeganSeq, Status: step.Status, Plan: v.Planned, Reasoning: v.Reasoning,
		Again: step.Status == lifecycle.StepRunning}
	c.Plan.Args, c.Plan.Shown = v.Args, v.Shown
	if a := step.Asked; a != nil {
		c.Plan.Approval = &a.ID
		c.Approval = &Approval{Status: a.Status, Decision: a.Decision, Feedback: a.Feedback, OnTimeout: a.OnTimeout,
			Assignee: a.Assignee, ExpiresAt: a.ExpiresAt}
		copy(c.Approval.Digest[:], a.Digest)
		if c.Plan.Terms == nil {
			c.Plan.Terms = &tool.Terms{Risk: a.Risk}
		}
		if a.Edited != nil {
			edited, err := k.cfg.Sealer.Open(engine.EditedAt(s.Tenant, a.ID), a.Edited)
			if err != nil {
				s.damaged(fmt.Errorf("open edited arguments of approval %s: %w", a.ID, err))
			}
			c.Approval.Edited, c.Approval.Shown = json.RawMessage(edited), a.Shown
		}
	}
	return c
}

// damaged notes the first value that could not be read.
func (s *State) damaged(err error) {
	if err != nil && s.Damage == "" {
		s.Damage = err.Error()
	}
}

// asks opens the approval of a call: it adds the row, the timers and the event.
func (k *kind) asks(w *journal.Commit, s *State, f Asked, now time.Time) {
	p := &f.Call.Plan
	t := p.Terms
	agent, _ := s.speaker()
	policy, err := json.Marshal(t.Policy)
	if err != nil {
		panic(err) // texts and ids encode
	}
	w.Rows = append(w.Rows, &engine.ApprovalInsert{
		ID: *p.Approval, Run: s.ID, StepIdx: f.Call.Idx, Agent: agent, Node: p.Node, Risk: t.Risk, Assignee: t.Role, Required: t.Required,
		Tool: p.Tool, Args: p.Shown, Schema: p.Schema, Frozen: k.sealBytes(engine.FrozenAt(s.Tenant, *p.Approval), p.Args),
		Digest: tool.Digest(p.Args), Reasoning: f.Call.Reasoning, Policy: policy, Escalate: t.Escalate, OnTimeout: t.OnTimeout,
		ExpiresAt: f.Expires, CreatedAt: now, SkillRun: p.DecidesOn(),
	})
	w.Rows = append(w.Rows, &engine.Tally{What: lifecycle.TallyRequested, At: now, Agent: agent})
	w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.ApprovalTimer(*p.Approval, msg.TimerExpire), DueAt: f.Expires})
	if t.Escalate.Above(t.Role) {
		part := time.Duration(k.cfg.EscalateFraction * float64(t.SLA()))
		w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.ApprovalTimer(*p.Approval, msg.TimerEscalate), DueAt: now.Add(part)})
	}
	k.reportAsked(w, s, f.Call, now)
}

// withdraw cancels the pending approvals of a run that ended and reports that. It deletes the
// timers of all its approvals.
func (k *kind) withdraw(w *journal.Commit, s *State, f Withdrawn, m any, op id.OpID, now time.Time) {
	var open []*Call
	var pending []engine.Pending
	for _, c := range f.Calls {
		a := *c.Plan.Approval
		if !c.Approval.Status.Terminal() {
			open, pending = append(open, c), append(pending, engine.Pending{ID: a, Assignee: c.Approval.Assignee})
		}
		w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(a, msg.TimerExpire), engine.ApprovalTimer(a, msg.TimerEscalate), engine.WakeTimer(s.ID, a))
	}
	if len(open) > 0 {
		w.Statements = append(w.Statements, engine.CancelApprovals(s.Tenant, op, s.ID, pending, now))
		k.reportWithdrawn(w, s, open, m, now)
	}
}
