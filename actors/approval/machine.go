package approval

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Machine decides for approvals.
type Machine struct{}

type decision = durable.Decision[State]

// Tools of the approvals of gates and human tasks (service.md, Approval status) begin with
// nodePrefix.
const (
	nodePrefix = "workflow:"
	toolGate   = nodePrefix + "gate"
)

// maxEdits bounds the edited arguments of all approvals of one run, in bytes: the run reads those that
// were decided together.
const maxEdits = 8 << 20

// maxFeedback bounds the feedback, in characters (service.md, Limits).
const maxFeedback = 4000

// Decide returns what m changes. doc.go has a drawing of the statuses.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
	now = now.UTC().Truncate(time.Microsecond) // as the database stores it
	switch m := m.(type) {
	case msg.Decide:
		return decide(s, m, nil, now)
	case durable.Answered:
		return decide(s, m.Msg.(msg.Decide), &m, now)
	case durable.TimerDue:
		return due(s, m.Name, now), nil
	case durable.Refused:
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return decision{Next: s}, nil
}

// Owed returns nothing: see doc.go, Loss.
func (Machine) Owed(State) []durable.Effect { return nil }

// decide processes a person's decision. The checks have the order of the specification: a
// principal who may not decide learns nothing else. A repeated decision gets its first
// answer, whatever happened since. An edit is decided after its arguments were
// checked: known is the answer to that question, nil if there is none yet.
func decide(s State, m msg.Decide, known *durable.Answered, now time.Time) (decision, error) {
	if n := s.taken(m); n > 0 {
		if n == len(s.Ledger) && s.Decision == m.Action { // it decided
			return decision{Next: s, Reply: msg.Decided{Status: s.Status, ApprovalsSoFar: s.SoFar}}, nil
		}
		return decision{Next: s, Reply: standing(s.Ledger[:n], s.Required)}, nil
	}
	if !s.allows(m) {
		return decision{}, problem.New(problem.CodeForbidden, "This approval is decided by the role "+string(s.Assignee)+".")
	}
	if s.Status.Terminal() {
		return decision{}, already("This approval is " + string(s.Status) + ".")
	}
	if !s.Waiting {
		return decision{}, already("The run does not wait for this approval any more.")
	}
	if !now.Before(s.ExpiresAt) { // its timer is due and has not arrived
		d := expire(s, now)
		d.Reply = already("This approval is " + string(d.Next.Status) + ".")
		return d, nil
	}
	for _, e := range s.Ledger {
		switch {
		case e.Principal == m.Principal:
			return decision{}, already("You have decided on this approval before.")
		case approver(e.Principal) == approver(m.Principal):
			return decision{}, already("Another API key has decided on this approval before: all API keys of a tenant count as one approver. Let a person decide.")
		}
	}
	if err := check(s.Tool, m); err != nil {
		return decision{}, err
	}
	next, entry := s, Entry{Op: m.Op, Principal: m.Principal, Action: m.Action, At: now}
	if m.Feedback != "" {
		entry.Feedback = &m.Feedback
	}
	if m.Action == lifecycle.ActionEdit {
		args, err := s.edited(m.EditedArgs)
		if err != nil {
			return decision{}, err
		}
		valid, checked := answer(known, args)
		switch {
		case !checked:
			return decision{Question: CheckArgs{Schema: s.Schema, Args: args, SkillRun: s.SkillRun, Given: m.EditedArgs, Agent: s.Agent, Workflow: s.Workflow}}, nil
		case valid.Reason != "":
			return decision{}, problem.New(problem.CodeInvalidArgs, valid.Reason)
		}
		entry.EditedArgs = valid.Shown
		next.Edited, next.Digest = args, tool.Digest(args)
	}
	next.Ledger = append(slices.Clip(s.Ledger), entry)
	if m.Action == lifecycle.ActionEdit && s.OtherEdits > next.room() {
		return decision{}, problem.New(problem.CodeInvalidArgs,
			"The edited arguments of one run's approvals have at most "+strconv.Itoa(maxEdits>>20)+" MiB together: send smaller ones, or decide with approve, reject or respond.")
	}
	reply := standing(next.Ledger, s.Required)
	next.SoFar = reply.ApprovalsSoFar
	if reply.Status.Terminal() {
		next.end(reply.Status, m.Action, now)
	}
	if m.Action == lifecycle.ActionReject || m.Action == lifecycle.ActionRespond {
		next.Feedback = &m.Feedback
	}
	return decision{Next: next, Changed: true, Facts: []any{Voted{entry}}, Reply: reply}, nil
}

// taken returns the number of entries up to and including the one of m, 0 if m has none. Only
// the sender of a decision knows its operation.
func (s *State) taken(m msg.Decide) int {
	if m.Op.IsZero() {
		return 0
	}
	return 1 + slices.IndexFunc(s.Ledger, func(e Entry) bool { return e.Op == m.Op && e.Principal == m.Principal })
}

// approver returns the approver as whom a principal counts. The holder of one API key can
// make others, so all keys of a tenant are one approver.
func approver(principal string) string {
	if strings.HasPrefix(principal, "apikey:") {
		return "apikey:*"
	}
	return principal
}

// standing returns the status and the count after the last entry of a ledger. A ledger may
// hold several API keys; they count once.
func standing(ledger []Entry, required int) msg.Decided {
	d, edits := msg.Decided{Status: lifecycle.ApprovalPending}, false
	counted := map[string]bool{}
	for _, e := range ledger {
		switch e.Action {
		case lifecycle.ActionReject:
			d.Status = lifecycle.ApprovalRejected
		case lifecycle.ActionRespond:
			d.Status = lifecycle.ApprovalResponded
		default:
			if who := approver(e.Principal); !counted[who] {
				counted[who] = true
				d.ApprovalsSoFar++
			}
			edits = edits || e.Action == lifecycle.ActionEdit
		}
	}
	switch {
	case d.Status.Terminal(), d.ApprovalsSoFar < required:
	case edits:
		d.Status = lifecycle.ApprovalEdited
	default:
		d.Status = lifecycle.ApprovalApproved
	}
	return d
}

// allows reports whether the role of a principal is enough (service.md, Approval
// policy, approver_role).
func (s *State) allows(m msg.Decide) bool {
	return m.Role.Satisfies(s.Assignee) || s.Assignee == lifecycle.RoleManager && m.Manages
}

// check validates the body of a decision.
func check(tool string, m msg.Decide) error {
	var bad []problem.Field
	switch m.Action {
	case lifecycle.ActionApprove, lifecycle.ActionReject, lifecycle.ActionRespond:
		if len(m.EditedArgs) > 0 {
			bad = append(bad, problem.Field{Path: "edited_args", Message: "is for action edit only"})
		}
	case lifecycle.ActionEdit:
		switch {
		case tool == toolGate:
			bad = append(bad, problem.Field{Path: "action", Message: "a gate has nothing to edit: approve or reject it"})
		case len(m.EditedArgs) == 0:
			bad = append(bad, problem.Field{Path: "edited_args", Message: "is required"})
		}
	default:
		bad = append(bad, problem.Field{Path: "action", Message: "expected approve, edit, reject or respond"})
	}
	if utf8.RuneCountInString(m.Feedback) > maxFeedback {
		bad = append(bad, problem.Field{Path: "feedback", Message: "expected at most 4000 characters"})
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	return nil
}

// answer returns the result of the check of args; not ok if known is not about them.
func answer(known *durable.Answered, args json.RawMessage) (valid ArgsChecked, ok bool) {
	if known == nil {
		return ArgsChecked{}, false
	}
	q, ok := known.Question.(CheckArgs)
	if !ok || !bytes.Equal(q.Args, args) {
		return ArgsChecked{}, false
	}
	valid, ok = known.Answer.(ArgsChecked)
	return valid, ok
}

// edited returns the arguments that given means: the frozen value replaces each [redacted],
// and idempotency_key is always the frozen one.
func (s *State) edited(given json.RawMessage) (json.RawMessage, error) {
	if s.Frozen == nil { // the sealed value is damaged, or its key is gone
		return nil, problem.New(problem.CodeInvalidArgs, "The arguments of this call cannot be read any more, so that they cannot be edited: decide with reject or respond.")
	}
	args, err := tool.Unmask(given, s.Frozen, s.Shown)
	if err != nil {
		return nil, problem.New(problem.CodeInvalidArgs, err.Error())
	}
	return tool.KeepKey(args, s.Frozen), nil
}

// room returns how large the edits of the run's other approvals may be beside those of this one, of
// which the ledger keeps every one.
func (s *State) room() int64 {
	n := 0
	for i := range s.Ledger {
		n += len(s.Ledger[i].EditedArgs)
	}
	return int64(maxEdits - max(n, len(s.Edited)))
}

func already(detail string) *problem.Error { return problem.New(problem.CodeAlreadyDecided, detail) }

// end makes the approval terminal.
func (s *State) end(status lifecycle.ApprovalStatus, by lifecycle.Action, now time.Time) {
	s.Status, s.Decision, s.DecidedAt = status, by, &now
}

func expire(s State, now time.Time) decision {
	s.end(lifecycle.ApprovalExpired, lifecycle.ActionExpire, now)
	return decision{Next: s, Changed: true, Facts: []any{Expired{}}}
}

// due handles a timer. It checks the time again: the clock of the sender may differ.
func due(s State, name string, now time.Time) decision {
	switch {
	case s.Status.Terminal(), !s.Waiting:
		return only(s, Disarmed{name})
	case !now.Before(s.ExpiresAt):
		return expire(s, now)
	case name == msg.TimerExpire:
		return only(s, Rearmed{name, s.ExpiresAt})
	case name != msg.TimerEscalate, s.EscalatedAt != nil, !s.Escalate.Above(s.Assignee):
		return only(s, Disarmed{name})
	case s.EscalateAt == nil: // the timer has been deleted
		return decision{Next: s}
	case now.Before(*s.EscalateAt):
		return only(s, Rearmed{name, *s.EscalateAt})
	}
	next := s
	next.Assignee, next.EscalatedAt = s.Escalate, &now
	return decision{Next: next, Changed: true, Facts: []any{Escalated{}}}
}

// only returns a decision that changes a timer and nothing else.
func only(s State, timer any) decision {
	return decision{Next: s, Changed: true, Facts: []any{timer}}
}
