package blackbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// The laws of a gated call: one decision has one effect. Each law is checked for every tale that it applies to.
const (
	lawEnds    = "every story comes to its end"
	lawAnswers = "who decides is answered as the approval stands"
	lawOnce    = "what may not be repeated is called at most once"
	lawSame    = "all calls of one approval are the same bytes under one key"
	lawArgs    = "what is called is what was approved"
	lawAfter   = "nothing is called before the last needed approval was sent"
	lawNever   = "nothing is called after reject, respond, expiry or cancel"
	lawReceipt = "a call has its receipt in the run"
	lawCalled  = "what is answered was called"
	lawEnd     = "approval, run and answers agree on the end"
	lawStays   = "a terminal status stays"
	lawSteps   = "steps have no gap and end with their run"
	lawFrames  = "a run waits once and is resumed once for each approval, before anything is called"
	lawStream  = "what was heard over crashes is what is replayed"
	lawText    = "the answer is what was said"
	lawUngated = "ungated calls are made before people are asked"
	lawKeys    = "no two calls share a key"
	lawHealth  = "the doctor finds nothing"
)

var laws = []string{lawEnds, lawAnswers, lawOnce, lawSame, lawArgs, lawAfter, lawNever, lawReceipt, lawCalled, lawEnd, lawStays, lawSteps, lawFrames, lawStream, lawText,
	lawUngated, lawKeys, lawHealth}

// lateCall is how long after the response to a cancel a call that was already sent may arrive.
const lateCall = 5 * time.Second

// gatedView is an approval as the API shows it.
type gatedView struct {
	ID              string
	Status          string
	StepIdx         int `json:"step_idx"`
	SoFar           int `json:"approvals_so_far"`
	RequestedAction struct {
		Tool string
		Args json.RawMessage
	} `json:"requested_action"`
	Decisions []struct{ Principal, Action string }
	DecidedAt *time.Time `json:"decided_at"`
}

// evidence is the visible state of a tale after its end.
type evidence struct {
	run       *runAnswer
	approvals []gatedView
	replay    []client.Frame
	calls     map[string][]toolCall // by order
}

// rulings are the results of the laws.
type rulings struct {
	held    map[string]int // by law
	broken  map[string][]string
	stories map[string]int // tales that ended, by story
	ends    map[string]int // of approvals, by fate and status
	unknown int            // calls whose outcome is unknown
	again   int            // calls that were repeated
	keys    map[string]string
}

func newRulings() *rulings {
	return &rulings{held: map[string]int{}, broken: map[string][]string{}, stories: map[string]int{}, ends: map[string]int{}, keys: map[string]string{}}
}

func (r *rulings) rule(x *tale, law string, ok bool, format string, args ...any) {
	if ok {
		r.held[law]++
		return
	}
	r.broken[law] = append(r.broken[law], fmt.Sprintf("%s (%s, run %s): %s", x.id, x.name, x.run, fmt.Sprintf(format, args...)))
}

// report fails t for each broken law.
func (r *rulings) report(t *testing.T) {
	t.Helper()
	for _, law := range laws {
		for i, why := range r.broken[law] {
			if i == 3 {
				t.Errorf("%s: and %d more", law, len(r.broken[law])-i)
				break
			}
			t.Errorf("%s: %s", law, why)
		}
	}
}

// notVoid fails t for each law and each story that did not occur.
func (r *rulings) notVoid(t *testing.T) {
	t.Helper()
	for _, law := range laws {
		if r.held[law] == 0 {
			t.Errorf("%s: no case was seen, the test is void", law)
		}
	}
	for _, s := range stories {
		if r.stories[s.name] == 0 {
			t.Errorf("%s: no such story ended, the test is void", s.name)
		}
	}
	t.Log(r)
}

func (r *rulings) String() string {
	var b strings.Builder
	tales := 0
	for _, n := range r.stories {
		tales += n
	}
	fmt.Fprintf(&b, "%d tales, %d calls repeated, %d outcomes unknown; ends", tales, r.again, r.unknown)
	for _, k := range slices.Sorted(maps.Keys(r.ends)) {
		fmt.Fprintf(&b, ", %s %d", k, r.ends[k])
	}
	return b.String()
}

// judge checks the laws for tales that have ended.
func (w *scene) judge(t *testing.T, tales []*tale) *rulings {
	t.Helper()
	ctx := within(t, time.Minute)
	r := newRulings()
	found := make([]*evidence, len(tales))
	places := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, x := range tales {
		r.rule(x, lawEnds, x.err == nil, "%v", x.err)
		if x.err != nil {
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			e := &evidence{run: new(runAnswer)}
			for path, into := range map[string]any{
				"/v1/runs/" + x.run:                  e.run,
				"/v1/approvals?run_id=" + x.run + "": &struct{ Items *[]gatedView }{&e.approvals},
			} {
				a, err := w.first.careful(ctx, "GET", path, "", nil)
				if err == nil && a.status == 200 {
					err = json.Unmarshal(a.body, into)
				}
				if err != nil || a.status != 200 {
					t.Errorf("GET %s: %v %s", path, err, a)
					return
				}
			}
			var err error
			if e.replay, err = w.hear(ctx, x.run, nil); err != nil {
				t.Error(err)
				return
			}
			found[i] = e
		})
	}
	wg.Wait()
	calls := w.log.byOrder(t)
	for i, e := range found {
		if e != nil {
			e.calls = calls
			r.verdict(tales[i], e)
		}
	}
	return r
}

// verdict checks the laws for one tale.
func (r *rulings) verdict(x *tale, e *evidence) {
	r.stories[x.name]++
	r.rule(x, lawEnds, terminalStatus[e.run.Run.Status], "the run is %s", e.run.Run.Status)
	r.rule(x, lawAnswers, len(x.wrong) == 0, "%s", strings.Join(x.wrong, "; "))
	r.steps(x, e)
	r.stream(x, e)
	marks := r.frames(x, e)
	if x.lookup {
		got := e.calls[x.lookedUp()]
		ok := len(got) > 0
		for _, c := range got {
			ok = ok && c.Args == fmt.Sprintf(`{"order":%q}`, x.lookedUp()) && c.At.Before(x.waited)
		}
		r.rule(x, lawUngated, ok, "waited at %s, called %+v", x.waited, got)
	}
	byID := map[string]*gatedView{}
	for i := range e.approvals {
		byID[e.approvals[i].ID] = &e.approvals[i]
	}
	r.rule(x, lawEnd, len(byID) == len(x.asked), "%d approvals for %d calls", len(byID), len(x.asked))
	statuses := map[fate]string{}
	for _, a := range x.asked {
		v := byID[a.approval]
		if v == nil || v.StepIdx >= len(e.run.Steps) {
			r.rule(x, lawEnd, false, "approval %q of %s is not there", a.approval, a.order)
			continue
		}
		statuses[a.fate] = v.Status
		r.call(x, a, v, e, marks[a.approval])
	}
	r.end(x, e, statuses)
}

// end returns the status with which the run must have ended.
func (r *rulings) end(x *tale, e *evidence, statuses map[fate]string) {
	run := &e.run.Run
	got := run.Status
	if run.Error != nil {
		got += " " + run.Error.Code
	}
	want := []string{"succeeded"}
	switch {
	case statuses[isCancelled] != "", statuses[approveOrCancel] == "cancelled", statuses[anyOfThree] == "cancelled":
		want = []string{"cancelled CANCELLED"}
	case statuses[isExpired] != "" && x.agent == "strict":
		want = []string{"cancelled EXPIRED"}
	case x.ended != "": // the cancel was second to a decision, before or after the run's own end
		want = []string{"succeeded", "cancelled CANCELLED"}
	}
	r.rule(x, lawEnd, slices.Contains(want, got), "the run is %s, want %v", got, want)
	if x.ended != "" {
		r.rule(x, lawStays, x.ended == run.Status, "the cancel was answered %s, the run is %s", x.ended, run.Status)
	}
	if run.Status == "succeeded" {
		r.rule(x, lawText, e.run.text() == x.says() && lastText(x.frames) == x.says() && lastText(e.replay) == x.says(),
			"answered %q, streamed %q, replayed %q", e.run.text(), lastText(x.frames), lastText(e.replay))
	}
}

// call checks the laws for one gated call.
func (r *rulings) call(x *tale, a *asking, v *gatedView, e *evidence, m marks) {
	calls, step, run := e.calls[a.order], &e.run.Steps[v.StepIdx], &e.run.Run
	r.ends[string(a.fate)+": "+v.Status]++
	r.rule(x, lawEnd, slices.Contains(ends[a.fate], v.Status), "the approval of %s, which is to be %s, is %s", a.order, a.fate, v.Status)
	if a.seen != "" {
		r.rule(x, lawStays, a.seen == v.Status, "the approval of %s was %s and is %s", a.order, a.seen, v.Status)
	}
	if a.counted != nil {
		r.rule(x, lawEnd, *a.counted == (v.Status == "approved"), "the approval of %s is %s, and that approve counts was answered %t", a.order, v.Status, *a.counted)
	}
	r.rule(x, lawReceipt, len(calls) == 0 || m.called == 1, "%s was called %d times and has %d frames tool.called", a.order, len(calls), m.called)
	goes := v.Status == "approved" || v.Status == "edited"
	if !goes {
		r.rule(x, lawNever, len(calls) == 0 && m.called == 0, "%s is %s and was called: %+v, %d frames tool.called", a.order, v.Status, calls, m.called)
		return
	}
	var failed struct{ Error string }
	_ = json.Unmarshal(step.Output, &failed)
	cut := run.Status == "cancelled" // its open call has no outcome
	unknown := !cut && step.Status == "failed" && failed.Error == "UNKNOWN_OUTCOME"
	if unknown {
		r.unknown++
	}
	if len(calls) > 1 {
		r.again++
	}
	if a.tool == plainTool {
		r.rule(x, lawOnce, len(calls) <= 1, "%s was called %d times: %+v", a.order, len(calls), calls)
	}
	switch {
	case step.Status == "succeeded":
		r.rule(x, lawCalled, len(calls) > 0, "%s is answered and was never called", a.order)
	case cut, unknown && a.tool == plainTool:
	default:
		r.rule(x, lawCalled, false, "the step of %s is %s: %s", a.order, step.Status, step.Output)
	}
	if len(calls) == 0 {
		return
	}
	first := calls[0]
	same, after := true, true
	for _, c := range calls {
		same = same && c.Args == first.Args && c.Tool == a.tool
		after = after && !a.sent.IsZero() && c.At.After(a.sent)
		if cut && !x.endedAt.IsZero() {
			r.rule(x, lawNever, c.At.Before(x.endedAt.Add(lateCall)), "%s was called %s after the cancel was answered", a.order, c.At.Sub(x.endedAt))
		}
	}
	r.rule(x, lawSame, same, "%+v", calls)
	r.rule(x, lawAfter, after, "the last approval of %s was sent at %s: %+v", a.order, a.sent, calls)
	want := a.args
	if v.Status == "edited" {
		want = a.edited()
	}
	if a.tool == keyedTool {
		var asked struct {
			Key string `json:"idempotency_key"`
		}
		_ = json.Unmarshal(v.RequestedAction.Args, &asked)
		want = strings.TrimSuffix(want, "}") + `,"idempotency_key":` + strconv.Quote(asked.Key) + "}"
		other := r.keys[asked.Key]
		r.rule(x, lawKeys, asked.Key != "" && other == "", "%s and %s have the key %q", a.order, other, asked.Key)
		r.keys[asked.Key] = a.order
	}
	r.rule(x, lawArgs, first.Args == want, "called with %s, want %s", first.Args, want)
}

func (r *rulings) steps(x *tale, e *evidence) {
	for i, s := range e.run.Steps {
		r.rule(x, lawSteps, s.Idx == i && s.Status != "running" && s.Status != "waiting", "step %d has idx %d and is %s", i, s.Idx, s.Status)
	}
}

// marks are the frames of one gated call.
type marks struct{ required, resumed, called, result int }

// frames checks the order of a gated turn against the replayed frames.
func (r *rulings) frames(x *tale, e *evidence) map[string]marks {
	byStep, out := map[int]string{}, map[string]marks{}
	for i := range e.approvals {
		byStep[e.approvals[i].StepIdx] = e.approvals[i].ID
	}
	waiting, resumed, order := 0, 0, true
	for _, f := range e.replay {
		var d struct {
			Approval string `json:"approval_id"`
			Idx      int
		}
		_ = json.Unmarshal(f.Data, &d)
		var of string
		switch f.Type {
		case "approval.required", "run.resumed":
			of = d.Approval
		case "tool.called", "tool.result":
			if of = byStep[d.Idx]; of == "" {
				order = order && waiting == 0 // ungated: before
				continue
			}
		case "run.waiting":
			waiting++
			continue
		default:
			continue
		}
		m := out[of]
		switch f.Type {
		case "approval.required":
			m.required++
			order = order && waiting == 0
		case "run.resumed":
			m.resumed++
			resumed++
			order = order && waiting == 1
		case "tool.called":
			m.called++
			order = order && resumed == len(x.asked)
		case "tool.result":
			m.result++
			order = order && resumed == len(x.asked)
		}
		out[of] = m
	}
	ok := order && waiting == 1 && (resumed == len(x.asked) || resumed == 0 && e.run.Run.Status == "cancelled")
	for _, a := range x.asked {
		m := out[a.approval]
		ok = ok && m.required == 1 && m.resumed <= 1 && m.called <= 1 && m.result <= 1
	}
	r.rule(x, lawFrames, ok, "%s: %+v", types(e.replay), out)
	return out
}

// stream compares the live frames with the replayed ones, apart from the splitting of live text and from the text of
// abandoned steps.
func (r *rulings) stream(x *tale, e *evidence) {
	live, replay := facts(x.frames), facts(e.replay)
	at := 0
	for at < len(live) && at < len(replay) && live[at] == replay[at] {
		at++
	}
	r.rule(x, lawStream, slices.Equal(live, replay), "%d frames heard, %d replayed, the same up to %d: %v against %v", len(live), len(replay), at, live[at:], replay[at:])
	last := [2]int64{-1, 0}
	ok := len(x.frames) > 0
	for i, f := range x.frames {
		seq, off, _ := strings.Cut(f.ID, ".")
		var p [2]int64
		p[0], _ = strconv.ParseInt(seq, 10, 64)
		p[1], _ = strconv.ParseInt(off, 10, 64)
		ok = ok && slices.Compare(p[:], last[:]) > 0 && f.Terminal() == (i == len(x.frames)-1)
		last = p
	}
	r.rule(x, lawStream, ok, "the ids heard do not increase, or the end is not the end: %v", told(x.frames))
}

// facts returns the frames other than live text.
func facts(frames []client.Frame) []string {
	var out []string
	for _, f := range frames {
		if f.Type != "llm.delta" && f.Type != "llm.thinking" {
			out = append(out, f.ID+" "+f.Type+" "+string(f.Data))
		}
	}
	return out
}

// lastText returns the live text of the last model step.
func lastText(frames []client.Frame) string {
	at := 0
	for i, f := range frames {
		if f.Type == "step.started" {
			at = i
		}
	}
	return textOf(frames[at:], "llm.delta")
}

// examine runs svc doctor.
func (w *scene) examine(r *rulings) {
	w.t.Helper()
	out, code := w.svc("doctor")
	if code == 0 {
		r.held[lawHealth]++
		return
	}
	r.broken[lawHealth] = append(r.broken[lawHealth], out)
}
