package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for runs of agents.
type Machine struct {
	// Slots says that a run needs a running place of its tenant.
	Slots bool
}

type decision = durable.Decision[State]

// Decide returns what m changes. See the drawing in doc.go.
func (mc Machine) Decide(s State, m any, now time.Time) (decision, error) {
	l, leaving := m.(durable.Leaving)
	if leaving {
		m = l.Msg
	}
	if s.Status == "" {
		start, ok := m.(msg.StartOne)
		if refused, is := m.(durable.Refused); is {
			if _, starting := refused.Msg.(msg.StartOne); starting {
				return decision{}, problem.Invalid("input", "cannot be stored")
			}
		}
		if !ok {
			return decision{}, problem.NotFound("run")
		}
		if s.Unread {
			return decision{}, problem.Unavailable("The agent's version could not be read.", time.Second)
		}
		return create(s, start, now), nil
	}
	c := &change{s: s, now: now, leaving: leaving}
	switch m := m.(type) {
	case durable.TimerDue:
		if leaving { // it comes again where the run goes on
			return decision{Next: s}, nil
		}
		if s.Status == lifecycle.RunWaitingApproval && c.look() {
			return c.decided(nil), nil
		}
		if !c.looked(m.Name) {
			return decision{Next: s}, nil
		}
		return c.decided(nil), nil
	case msg.StartOne: // accepted before
		return decision{Next: s, Reply: msg.Started{Run: s.ID}}, nil
	case msg.CancelRun:
		if s.Status.Terminal() {
			return decision{Next: s, Reply: msg.Status{Run: s.ID, Status: s.Status}}, nil
		}
		c.cancel()
		return c.decided(msg.Status{Run: s.ID, Status: c.s.Status}), nil
	case durable.Refused:
		switch m.Msg.(type) {
		case msg.CancelRun:
			return decision{}, problem.New(problem.CodeInternal, "")
		}
		if s.Status.Terminal() {
			return decision{Next: s}, nil
		}
		c.refused(m.Msg)
		return c.decided(nil), nil
	}
	if s.Status.Terminal() {
		return decision{Next: s}, nil // nothing else is news to an ended run
	}
	switch m := m.(type) {
	case durable.Activated:
		// A waiting run does nothing by itself: who activates it may want to cancel it.
		if s.Status != lifecycle.RunRunning {
			return decision{Next: s}, nil
		}
		c.resume()
	case msg.ApprovalsDecided, durable.Wake:
		if leaving || s.Status != lifecycle.RunWaitingApproval || !c.look() {
			return decision{Next: s}, nil
		}
	case msg.Proceed:
		switch {
		case leaving || s.Status != lifecycle.RunQueued:
			return decision{Next: s}, nil
		case !mc.Slots:
			c.start()
		case s.Turn:
			return decision{Next: s}, nil
		default:
			c.s.Turn = true
		}
	case msg.SlotGranted:
		if leaving || s.Status != lifecycle.RunQueued || !s.Turn {
			return decision{Next: s}, nil
		}
		c.start()
	case ModelAnswered:
		if !s.waitsFor(m.Idx) {
			return decision{Next: s}, nil
		}
		c.answered(m)
	case ModelFailed:
		if !s.waitsFor(m.Idx) {
			return decision{Next: s}, nil
		}
		c.failed(m)
	case TimeUp:
		if !s.waitsFor(m.Idx) && s.calls(m.Idx) < 0 {
			return decision{Next: s}, nil
		}
		c.outOfTime()
	case ToolAnswered:
		i := s.calls(m.Idx)
		if i < 0 || s.Calls[i].Kind != lifecycle.StepTool {
			return decision{Next: s}, nil
		}
		c.called(i, m.Outcome)
	case HandedOver:
		i := s.calls(m.Idx)
		if i < 0 || s.Calls[i].Kind != lifecycle.StepHandoff {
			return decision{Next: s}, nil
		}
		c.handedOver(i, m)
	case durable.EffectFailed:
		if s.Open != nil && m.Key == (ModelCall{Idx: s.Open.Idx}).Key() {
			c.fail(lifecycle.StepFailed, lifecycle.FailInternal, internalMessage)
			break
		}
		i := slices.IndexFunc(s.Calls, func(k *Call) bool { return m.Key == k.key() })
		if i < 0 || s.calls(s.Calls[i].Idx) < 0 {
			return decision{Next: s}, nil
		}
		if s.Calls[i].Kind == lifecycle.StepHandoff {
			c.called(i, lostHandoff)
		} else {
			c.called(i, unknownOutcome)
		}
	default:
		return decision{Next: s}, nil
	}
	return c.decided(nil), nil
}

// Owed is what a run waits for: a running place once it may run, the answer of
// the model while a model's step is open, the answers of the tools that are
// called. A run that waits for people owes nothing.
func (Machine) Owed(s State) []durable.Effect {
	switch s.Status {
	case lifecycle.RunQueued:
		if s.Turn {
			return []durable.Effect{AcquireSlot{Run: s.ID, CreatedAt: s.CreatedAt}}
		}
	case lifecycle.RunRunning:
		if s.Open != nil && s.Open.Kind == lifecycle.StepLLM && s.Agent != nil {
			return []durable.Effect{ModelCall{Idx: s.Open.Idx, Seq: s.Open.Seq, Until: s.deadline(), Of: &s}}
		}
		if len(s.Calls) > 0 && s.Agent != nil {
			return owedCalls(&s)
		}
	}
	return nil
}

const internalMessage = "The run could not go on because of an internal error."

// errors that a decision cannot make and a programmer could.
var errNoAgent = errors.New("run: begun without an agent")

func create(s State, m msg.StartOne, now time.Time) decision {
	s.AgentID, s.AgentVersion = m.AgentID, m.AgentVersion
	s.Input, s.Origin, s.EndUserID = m.Input, m.Origin, m.EndUserID
	s.Status, s.CreatedAt, s.Known = lifecycle.RunQueued, now, true
	s.Turn = true // nobody goes before a run without a thread
	return decision{Next: s, Changed: true, Facts: []any{Created{}}, Reply: msg.Started{Run: s.ID}}
}

func (s *State) waitsFor(idx int) bool {
	return s.Status == lifecycle.RunRunning && s.Open != nil && s.Open.Idx == idx
}

// change is a decision in the making.
type change struct {
	s     State
	now   time.Time
	facts []any
	own   bool // s.Calls is this decision's own
	// leaving: the run goes on elsewhere, and begins nothing here.
	leaving bool
}

func (c *change) decided(reply any) decision {
	return decision{Next: c.s, Changed: true, Facts: c.facts, Reply: reply}
}

func (c *change) fact(f any) { c.facts = append(c.facts, f) }

func (c *change) seq() int64 {
	c.s.Seq++
	return c.s.Seq
}

// clock adds the time since the last look to the running time. max_seconds
// counts time in status running only, added up over activations: what passed
// between a crash and the next activation does not count.
func (c *change) clock() {
	if c.s.Status == lifecycle.RunRunning && !c.s.Since.IsZero() {
		c.s.Ran += max(0, c.now.Sub(c.s.Since))
	}
	c.s.Since = c.now
}

// start takes the run out of queued and begins its first step.
func (c *change) start() {
	c.run()
	if c.s.Agent == nil || c.s.Damage != "" {
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return
	}
	c.ask()
}

func (c *change) run() {
	now := c.now
	c.s.Status, c.s.StartedAt, c.s.Since = lifecycle.RunRunning, &now, now
	c.seq() // event.SeqStarted
	c.fact(Began{})
}

// resume goes on after an activation: what an older epoch began has no owner. A
// model's step is abandoned and asked again as a new one; of the calls some may
// be sent again.
func (c *change) resume() {
	c.s.Since = c.now
	if c.s.Open != nil {
		c.cutOff(lifecycle.StepAbandoned)
	}
	switch {
	case c.s.Agent == nil, c.s.Damage != "":
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
	case c.overTime():
	case len(c.s.Calls) > 0:
		c.takeUp()
	default:
		c.ask()
	}
}

// ask begins a model's step, unless the run is leaving: whoever activates it next
// finds it running with nothing open, and asks.
func (c *change) ask() {
	if c.s.Agent == nil {
		panic(errNoAgent)
	}
	if c.leaving {
		return
	}
	if c.s.Steps >= c.s.Agent.Manifest.Limits.MaxSteps {
		c.overSteps()
		return
	}
	m := c.s.Agent.Manifest.Model
	step := StepBegan{Idx: c.s.Steps, Kind: lifecycle.StepLLM, Name: m.Name, Status: lifecycle.StepRunning, Input: showModel(m), Seq: c.seq()}
	c.s.Steps++
	c.s.Open = &OpenStep{Idx: step.Idx, Kind: step.Kind, Seq: step.Seq}
	c.fact(step)
}

// endStep ends the open step.
func (c *change) endStep(e StepEnded) {
	e.Idx, e.Kind = c.s.Open.Idx, c.s.Open.Kind
	c.s.Open = nil
	c.s.TokensIn += e.TokensIn
	c.s.TokensOut += e.TokensOut
	c.s.CostUSD += e.CostUSD
	c.fact(e)
}

// cutOff ends a step whose effect goes on no further: failed, with what was said
// so far, where nothing comes in its place; else abandoned.
func (c *change) cutOff(status lifecycle.StepStatus) {
	c.endStep(StepEnded{Status: status, Cut: true})
}

func (c *change) answered(m ModelAnswered) {
	c.clock()
	r := m.Result
	e := StepEnded{
		Status: lifecycle.StepSucceeded, Output: showTurn(r, m.Plan), Segments: m.Segments,
		TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: m.Price.Cost(r.TokensIn, r.TokensOut), Estimated: r.Estimated,
	}
	declined := r.Finish == model.FinishFilter && r.Text == "" && len(r.Calls) == 0
	if declined {
		e.Status = lifecycle.StepFailed
	}
	if len(r.Calls) > 0 {
		turn := r.Message()
		e.Turn = &turn
	}
	c.endStep(e)
	c.s.Retried = false
	switch {
	case c.overUse(), c.overTime():
	case declined:
		c.end(lifecycle.RunFailed, lifecycle.FailModelError, "The model declined to answer.")
	case len(r.Calls) > 0:
		c.begin(&m)
	default:
		c.finish(m.Verdict)
	}
}

// finish ends the run with what the check of the model's final text came to.
func (c *change) finish(v *Verdict) {
	if demand := undeliverable(c.s.Input); demand != "" {
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, demand)
		return
	}
	switch {
	case v == nil: // nothing unchecked leaves a run
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
		return
	case v.Late:
		c.s.Ran = max(c.s.Ran, c.s.maxTime())
		c.overTime()
		return
	case v.Reason != "":
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, v.Reason)
		return
	}
	now := c.now
	c.s.Status, c.s.FinishedAt, c.s.Output = lifecycle.RunSucceeded, &now, showOutput(v.Answer)
	c.seq()
	c.fact(Ended{Reply: v.Answer.Text})
}

// undeliverable says what a message asks of its answer that no answer of this
// run can have: citations, because nothing was retrieved, or a file.
func undeliverable(input json.RawMessage) string {
	if !bytes.Contains(input, []byte(`"options"`)) {
		return ""
	}
	var in struct {
		Options struct {
			Evidence    bool   `json:"evidence"`
			Deliverable string `json:"deliverable"`
		} `json:"options"`
	}
	if json.Unmarshal(input, &in) != nil { // an input of another shape, as sent
		return ""
	}
	switch {
	case in.Options.Evidence:
		return "The answer cites nothing from a knowledge base, which evidence asks for."
	case in.Options.Deliverable != "":
		return "The deliverable could not be made."
	}
	return ""
}

func (c *change) failed(m ModelFailed) {
	c.clock()
	status := lifecycle.StepFailed
	again := m.Interrupted || m.Broken && !c.s.Retried
	if again {
		status = lifecycle.StepAbandoned
	}
	c.endStep(StepEnded{
		Status: status, Cut: true, Failure: m.Message,
		TokensIn: m.TokensIn, TokensOut: m.TokensOut, CostUSD: m.Price.Cost(m.TokensIn, m.TokensOut), Estimated: m.TokensIn+m.TokensOut > 0,
	})
	switch {
	case c.overUse(), c.overTime():
	case again:
		c.s.Retried = c.s.Retried || !m.Interrupted
		c.ask()
	default:
		c.end(lifecycle.RunFailed, m.Code, m.Message)
	}
}

// outOfTime believes the effect: its clock and this one may differ by a little.
func (c *change) outOfTime() {
	c.clock()
	c.s.Ran = max(c.s.Ran, c.s.maxTime())
	if c.s.Open != nil {
		c.cutOff(lifecycle.StepFailed)
	}
	c.overTime()
}

func (c *change) cancel() {
	c.clock()
	if c.s.Open != nil {
		c.cutOff(lifecycle.StepFailed)
	}
	c.fact(Stopped{})
	c.end(lifecycle.RunCancelled, lifecycle.FailCancelled, "The run was cancelled.")
}

// refused ends a run whose rows the database does not take, without them. What
// was used is billed all the same.
func (c *change) refused(m any) {
	c.clock()
	if c.s.Status == lifecycle.RunQueued {
		c.run()
	}
	if c.s.Open != nil {
		e := StepEnded{Status: lifecycle.StepFailed}
		if a, ok := m.(ModelAnswered); ok && c.s.waitsFor(a.Idx) {
			e.TokensIn, e.TokensOut, e.Estimated = a.Result.TokensIn, a.Result.TokensOut, a.Result.Estimated
			e.CostUSD = a.Price.Cost(e.TokensIn, e.TokensOut)
		}
		c.endStep(e)
	}
	c.end(lifecycle.RunFailed, lifecycle.FailInternal, internalMessage)
}

// fail ends the open step and the run.
func (c *change) fail(step lifecycle.StepStatus, code lifecycle.Failure, message string) {
	c.clock()
	c.cutOff(step)
	c.end(lifecycle.RunFailed, code, message)
}

// end makes the run terminal without an answer. What is open of its calls ends
// with it.
func (c *change) end(status lifecycle.RunStatus, code lifecycle.Failure, message string) {
	if len(c.s.Calls) > 0 {
		c.drop()
	}
	now := c.now
	c.s.Status, c.s.FinishedAt, c.s.Error = status, &now, &Failure{Code: code, Message: message}
	c.seq()
	c.fact(Ended{})
}

// Limits (open-parts.md, Manifest): passing one fails the run. The functions
// report whether they did.

func (c *change) overSteps() {
	c.limit("max_steps", strconv.Itoa(c.s.Agent.Manifest.Limits.MaxSteps))
}

func (c *change) overTime() bool {
	if c.s.Ran < c.s.maxTime() {
		return false
	}
	c.limit("max_seconds", strconv.Itoa(c.s.Agent.Manifest.Limits.MaxSeconds))
	return true
}

func (c *change) overUse() bool {
	l := c.s.Agent.Manifest.Limits
	switch {
	case l.MaxTokens > 0 && c.s.TokensIn+c.s.TokensOut > l.MaxTokens:
		c.limit("max_tokens", strconv.FormatInt(l.MaxTokens, 10))
	case l.MaxCostUSD > 0 && c.s.CostUSD > l.MaxCostUSD:
		c.limit("max_cost_usd", strconv.FormatFloat(l.MaxCostUSD, 'f', -1, 64))
	default:
		return false
	}
	return true
}

func (c *change) limit(name, value string) {
	c.end(lifecycle.RunFailed, lifecycle.FailLimitExceeded, "The run passed its limit "+name+" of "+value+".")
}
