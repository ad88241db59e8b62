package workflow

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/webhook"
)

// The rows of the approvals that a run opens and cancels.

// approvals reads the rows of approvals, with the answers that people gave. The error is that
// of an answer that cannot be read; the approvals are all there.
func (k *kind) approvals(s *State, rows []engine.NodeApproval) (Approvals, error) {
	out := Approvals{}
	var failed error
	for i := range rows {
		r := &rows[i]
		a := &Approval{ID: r.ID, Status: r.Status, Decision: r.Decision, Risk: r.Risk, Assignee: r.Assignee, ExpiresAt: r.ExpiresAt, Version: r.Version, Tool: r.Tool}
		copy(a.Digest[:], r.Digest)
		out[r.Idx] = a
		if err := k.answer(s, r, a); err != nil {
			failed = fmt.Errorf("read the answer of approval %s: %w", r.ID, err)
		}
	}
	return out, failed
}

// answer reads what people answered.
func (k *kind) answer(s *State, r *engine.NodeApproval, a *Approval) (err error) {
	if a.Feedback, err = r.Feedback(); err != nil || r.Status != lifecycle.ApprovalEdited {
		return err
	}
	if a.Edited, err = k.cfg.Sealer.Open(engine.EditedAt(s.Tenant, r.ID), r.Edited); err != nil {
		return err
	}
	a.Shown, err = r.Shown()
	return err
}

// asks opens the approval of a step: it adds the row, the timers and the event.
func (k *kind) asks(w *journal.Commit, s *State, f Asked, now time.Time) {
	a, n := f.Approval, s.Plan.Node(f.Step.Node)
	t := terms(n)
	row := &engine.ApprovalInsert{ID: a.ID, Run: s.ID, StepIdx: f.Step.Idx, Node: s.OrgNode, Tool: a.Tool, ExpiresAt: a.ExpiresAt, CreatedAt: now}
	var args json.RawMessage
	if call := f.Step.Call; call != nil {
		t, args = call.Plan.Terms, call.Plan.Args
		row.Args, row.Schema, row.Node, row.SkillRun = call.Plan.Shown, call.Plan.Schema, call.Plan.Node, call.Plan.DecidesOn()
		if call.Plan.Skill != nil {
			row.Reasoning = call.Plan.Skill.Reason
		}
	} else {
		input := s.Input
		if len(input) == 0 {
			input = json.RawMessage("null")
		}
		args = jsontext.Must(struct {
			Title string          `json:"title"`
			Input json.RawMessage `json:"input"`
		}{f.Step.Text, input})
		row.Args = redact.JSON(args)
		if n.Type == flow.HumanTask {
			row.Schema = n.Form
		}
	}
	frozen, err := k.cfg.Sealer.Seal(engine.FrozenAt(s.Tenant, a.ID), args)
	if err != nil {
		panic(err) // sealing only needs randomness
	}
	row.Risk, row.Assignee, row.Required, row.Policy, row.Escalate, row.OnTimeout = t.Risk, t.Role, t.Required, jsontext.Must(t.Policy), t.Escalate, t.OnTimeout
	row.Frozen, row.Digest = frozen, tool.Digest(args)
	w.Rows = append(w.Rows, row, &engine.Tally{What: lifecycle.TallyRequested, At: now})
	w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.ApprovalTimer(a.ID, msg.TimerExpire), DueAt: a.ExpiresAt})
	if t.Escalate.Above(t.Role) {
		w.Timers = append(w.Timers, journal.Timer{TimerKey: engine.ApprovalTimer(a.ID, msg.TimerEscalate), DueAt: now.Add(time.Duration(k.cfg.EscalateFraction * float64(t.SLA())))})
	}
	if k.hears(s) {
		w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalRequested, k.approvalData(s, a), now))
	}
}

// withdraw cancels the pending approvals of a run that ended and reports that. It deletes the
// timers of all its approvals. One that opened in the same commit is cancelled with it.
func (k *kind) withdraw(w *journal.Commit, s *State, f Withdrawn, m any, op id.OpID, now time.Time) {
	by := msg.System
	if cancel, ok := m.(msg.CancelRun); ok {
		by = cancel.By.Actor
	}
	var pending []engine.Pending
	for _, a := range f.Approvals {
		w.Timers = slices.DeleteFunc(w.Timers, func(t journal.Timer) bool { return t.Kind == msg.KindApproval && t.Entity == a.ID.UUID })
		w.TimersDone = append(w.TimersDone, engine.ApprovalTimer(a.ID, msg.TimerExpire), engine.ApprovalTimer(a.ID, msg.TimerEscalate), engine.WakeTimer(s.ID, a.ID))
		if a.Status.Terminal() {
			continue
		}
		pending = append(pending, engine.Pending{ID: a.ID, Assignee: a.Assignee})
		if k.hears(s) {
			data := webhook.Decided{Approval: k.approvalData(s, a), Status: string(lifecycle.ApprovalCancelled), DecidedBy: by, DecidedAt: journal.Kept(now)}
			w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalDecided, data, now))
		}
	}
	if len(pending) > 0 {
		w.Statements = append(w.Statements, engine.CancelApprovals(s.Tenant, op, s.ID, pending, now))
	}
}

// approvalData returns the data of an event about an open approval.
func (k *kind) approvalData(s *State, a *Approval) webhook.Approval {
	return webhook.Approval{ApprovalID: a.ID.String(), RunID: s.ID.String(), Tool: a.Tool, Risk: string(a.Risk), AssigneeRole: string(a.Assignee), ExpiresAt: journal.Kept(a.ExpiresAt),
		URL: api.ApprovalURL(k.cfg.PublicURL, a.ID)}
}

func (k *kind) hears(s *State) bool { return k.cfg.Hears != nil && k.cfg.Hears(s.Tenant) }
