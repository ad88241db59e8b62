package skillrun

import (
	"bytes"
	"slices"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// Machine decides for runs of browser skills. The sequence is the table of schemas/skill; this file
// says which message is which of its events.
type Machine struct{}

type decision = durable.Decision[State]

// Decide returns what m changes. See the drawing in doc.go.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
	c := &change{s: s, now: now.UTC().Truncate(time.Microsecond)} // the precision of the database
	if l, ok := m.(durable.Leaving); ok {
		m, c.leaving = l.Msg, true
	}
	if s.Phase == "" {
		return c.create(m)
	}
	return c.decide(m, nil)
}

// change is a decision in the making.
type change struct {
	s       State
	now     time.Time
	facts   []any
	leaving bool // the next activation, on another node, goes on
}

func (c *change) create(m any) (decision, error) {
	switch m := m.(type) {
	case msg.StartSkill:
		c.s.State, _ = skill.Begin(m.Plan)
		c.s.Skill, c.s.Slug, c.s.Taught = m.Skill, m.Slug, m.Taught
		c.s.AgentRun, c.s.Agent, c.s.Approval = m.AgentRun, m.Agent, m.Approval
		c.s.Reason, c.s.By, c.s.Key, c.s.Values, c.s.CreatedAt = m.Reason, m.By, m.Key, m.Values, c.now
		return decision{Next: c.s, Changed: true, Facts: []any{Began{}}, Reply: msg.SkillStands{Phase: c.s.Phase}}, nil
	case durable.TimerDue: // the run was never begun, or is gone with its skill
		c.fact(TimerDone{})
		return decision{Next: c.s, Changed: true, Facts: c.facts}, nil
	case durable.Activated, msg.LookSkill, durable.Wake:
		return decision{Next: c.s}, nil
	case durable.Refused:
		if _, starting := m.Msg.(msg.StartSkill); starting {
			return decision{}, problem.New(problem.CodeInUse, "Another run holds the key, or the skill is gone.")
		}
	}
	return decision{}, problem.NotFound("browser skill run")
}

func (c *change) decide(m any, known *durable.Answered) (decision, error) {
	switch m := m.(type) {
	case durable.Answered:
		return c.decide(m.Msg, &m)
	case durable.Activated:
		c.activated()
	case msg.CommitSkill:
		return c.commit(m, known)
	case msg.LookSkill:
		return c.look(known, false)
	case durable.TimerDue:
		return c.look(known, true)
	case msg.WithdrawSkill:
		c.unfit(m.Why)
	case msg.RepeatSkill:
		c.repeated()
	case Unfit:
		c.unfit(m.Why)
	case CallerEnded:
		c.happens(skill.Cancelled, nil)
	case Prepared:
		c.reported(skill.Preparing, m.Report)
	case ReadDone:
		c.reported(skill.Reading, m.Report)
	case Reprepared:
		c.reprepared(m.Report)
	case Clicked:
		c.reported(skill.Committing, m.Report)
	case Committed:
		c.committed(m)
	case Compensated:
		c.compensated(m.Report)
	case durable.EffectFailed:
		c.effectFailed(m.Key)
	case durable.Refused:
		return c.refused(m.Msg)
	}
	return c.done(), nil
}

func (c *change) done() decision {
	return decision{Next: c.s, Changed: len(c.facts) > 0, Facts: c.facts, Reply: msg.SkillStands{Phase: c.s.Phase}}
}

// Owed returns the part of the work that the phase stands for. A run that waits for people, or has
// ended, owes nothing.
func (Machine) Owed(s State) []durable.Effect {
	switch s.Phase {
	case skill.Preparing:
		return []durable.Effect{Prepare{&s}}
	case skill.Repreparing:
		return []durable.Effect{Reprepare{&s}}
	case skill.Reading:
		return []durable.Effect{Read{&s}}
	case skill.Committing, skill.Committed:
		return []durable.Effect{Commit{&s}}
	case skill.Compensating:
		return []durable.Effect{Compensate{&s}}
	}
	return nil
}

// happens applies an event. It reports whether the phase answers it.
func (c *change) happens(e skill.Event, fault *skill.Fault) bool {
	var code skill.Code
	if fault != nil {
		code = fault.Code
	}
	next, _, changed := skill.Next(c.s.State, e, code)
	if !changed {
		return false
	}
	c.s.State = next
	if fault != nil {
		c.s.Fault = fault
	}
	if next.Phase == skill.Ended && c.s.FinishedAt == nil {
		at := c.now
		c.s.FinishedAt = &at
		if c.s.Fault == nil && next.Code != "" {
			c.s.Fault = &skill.Fault{Code: next.Code, Message: reasons[next.Code]}
		}
	}
	c.fact(Moved{})
	return true
}

func (c *change) fact(f any) {
	if !slices.Contains(c.facts, f) {
		c.facts = append(c.facts, f)
	}
}

// reasons are for people where the browser gave none.
var reasons = map[skill.Code]string{
	skill.CodeStepFailed:         "The browser ended before the step was done.",
	skill.CodeOutOfScope:         "The page left the hosts of the skill.",
	skill.CodeVerificationFailed: "A check failed after the commit.",
	skill.CodeUnknownOutcome:     "The commit was begun, and its outcome is not known.",
}

// activated takes over from an activation that died: see Crashed in the table. A run that waits, or
// has ended, is not claimed.
func (c *change) activated() {
	switch {
	case c.s.Phase == skill.Waiting, c.s.Phase == skill.Ended:
	case c.s.Phase == skill.Compensating && !c.s.Begun:
		c.s.Begun = true
		c.fact(Claimed{})
	default:
		c.happens(skill.Crashed, nil)
		if c.s.State.Compensation == skill.Interrupted && c.s.Record.Compensation == nil {
			c.s.Record.Compensation = &Compensation{Steps: []skill.StepResult{}, Error: &interrupted}
		}
	}
}

// commit goes on with what people approved. The approval is read first.
func (c *change) commit(m msg.CommitSkill, known *durable.Answered) (decision, error) {
	if c.s.Phase != skill.Waiting {
		return c.done(), nil
	}
	if c.s.Approval == nil || *c.s.Approval != m.Approval {
		return decision{}, problem.New(problem.CodeInvalidArgs, "This is not the approval of the skill's run.")
	}
	if q, asked := question[CheckApproval](known); !asked || !bytes.Equal(q.Args, m.Args) {
		return decision{Question: CheckApproval{m}}, nil
	}
	answer, _ := known.Answer.(Approvable)
	switch {
	case answer.Unfit != "":
		c.unfit(answer.Unfit)
	case answer.Taken:
		c.unfit(taken)
	case !answer.Approved:
		return decision{}, problem.New(problem.CodeInvalidArgs, answer.Why)
	case c.happens(skill.Approved, nil):
		c.s.Edited, c.s.Changed = !bytes.Equal(c.s.Values, answer.Values), skill.Changed(c.s.Values, answer.Values)
		c.s.Values = answer.Values
		if c.s.Edited {
			c.s.Key = answer.Key // what was filled first is not committed, so that a call may ask for it again
		}
	}
	return c.done(), nil
}

const taken = "Another call has the values that were approved. Nothing was committed by this one."

// question returns the question that was answered, if it is of type Q.
func question[Q any](known *durable.Answered) (q Q, ok bool) {
	if known != nil {
		q, ok = known.Question.(Q)
	}
	return q, ok
}

// look ends a run whose approval was refused, or whose call or agent's run has ended. After the
// receipt it changes nothing.
func (c *change) look(known *durable.Answered, timer bool) (decision, error) {
	if _, _, open := skill.Next(c.s.State, skill.Cancelled, ""); open {
		_, asked := question[Look](known)
		if !asked {
			return decision{Question: Look{}}, nil
		}
		switch seen := known.Answer.(Seen); {
		case seen.RunEnded, seen.CallEnded, seen.Approval == lifecycle.ApprovalCancelled:
			c.happens(skill.Cancelled, nil)
		case seen.Approval == lifecycle.ApprovalRejected, seen.Approval == lifecycle.ApprovalResponded, seen.Approval == lifecycle.ApprovalExpired:
			c.happens(skill.Refused, nil)
		}
	}
	if timer {
		c.fact(TimerDone{})
	}
	return c.done(), nil
}

// repeated notes that another call got the result of the run.
func (c *change) repeated() {
	if c.s.Phase == skill.Ended && !c.s.Repeated {
		c.s.Repeated = true
		c.fact(Moved{})
	}
}

// unfit ends a run whose skill may not run any more.
func (c *change) unfit(why string) {
	if c.happens(skill.Withdrawn, nil) {
		c.s.Fault = &skill.Fault{Message: why}
	}
}

// reported applies the report of a part of the work.
func (c *change) reported(in skill.RunPhase, r *skill.Report) {
	if c.s.Phase != in {
		return
	}
	if r == nil {
		r = &skill.Report{Event: skill.Lost}
	}
	if in == skill.Preparing && r.Event == skill.Landed || in == skill.Reading && c.s.Plan.Mode == skill.Run && r.Page.URL != "" {
		page := r.Page
		c.s.Page = &page
	}
	c.record(r)
	if !c.happens(r.Event, r.Fault) { // an event that this part cannot have
		c.happens(skill.Lost, nil)
	}
	if in == skill.Committing && c.s.Phase == skill.Committed {
		c.fact(Answered{})
	}
}

// record adds what a part did to what the run shows.
func (c *change) record(r *skill.Report) {
	c.s.Steps = append(slices.Clip(c.s.Steps), r.Steps...)
	c.s.Shots += r.Shots
	if r.Checks != nil {
		c.s.Checks = r.Checks
	}
	if r.Result != nil {
		c.s.Result = r.Result
	}
}

// reprepared writes the receipt, if the page is what was approved. On a node that the run leaves it
// changes nothing: the page is here, so that the next activation fills its own.
func (c *change) reprepared(r *skill.Report) {
	if c.s.Phase != skill.Repreparing || c.leaving && r != nil && r.Event == skill.Ready {
		return
	}
	if r != nil {
		c.s.Steps = nil // those of the preview
		if r.Event == skill.Ready && (c.s.Page == nil || c.s.Edited) {
			page := r.Page
			c.s.Page = &page
		}
	}
	c.reported(skill.Repreparing, r)
}

// committed ends the run after its click. The checks may have failed: then the compensation steps
// are owed.
func (c *change) committed(m Committed) {
	c.reported(skill.Committing, m.Click) // unless Clicked came before
	if m.Verify == nil {
		if c.s.Phase == skill.Committed {
			c.happens(skill.Lost, nil)
		}
		return
	}
	c.reported(skill.Committed, m.Verify)
	c.s.Begun = c.s.Phase == skill.Compensating && !c.leaving
}

func (c *change) compensated(r *skill.Report) {
	if c.s.Phase != skill.Compensating {
		return
	}
	e := skill.Lost
	done := &Compensation{Steps: []skill.StepResult{}}
	if r != nil {
		done.Ran = r.Event == skill.Compensated
		if e = r.Event; r.Fault != nil {
			why := r.Fault.Message
			if why == "" {
				why = string(r.Fault.Code)
			}
			done.Error = &why
		}
		done.Steps = append(done.Steps, r.Steps...)
		c.s.Shots += r.Shots
	}
	if !c.happens(e, nil) {
		c.happens(skill.Lost, nil)
	}
	if c.s.State.Compensation == skill.Interrupted || !done.Ran && done.Error == nil {
		done.Error = &interrupted
	}
	c.s.Record.Compensation = done
}

var interrupted = "The compensation steps were interrupted."

func (c *change) effectFailed(key string) {
	switch key {
	case keyPrepare:
		c.reported(skill.Preparing, nil)
	case keyReprepare:
		c.reported(skill.Repreparing, nil)
	case keyRead:
		c.reported(skill.Reading, nil)
	case keyCommit:
		c.happens(skill.Lost, nil)
	case keyCompensate:
		c.compensated(nil)
	}
}

// refused ends a run whose rows the database refuses, without what it was to show.
func (c *change) refused(m any) (decision, error) {
	switch m.(type) {
	case msg.CommitSkill:
		if c.s.Phase == skill.Waiting { // another run took the key of the edited values meanwhile
			c.unfit(taken)
			return c.done(), nil
		}
		return decision{}, problem.New(problem.CodeInternal, "")
	case msg.WithdrawSkill, msg.RepeatSkill:
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	c.s.Record = Record{Shots: c.s.Shots}
	c.happens(skill.Lost, nil)
	return c.done(), nil
}
