package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

var (
	t0     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tenant = id.TenantID{UUID: id.NewAnywhere()}
	thread = id.ThreadID{UUID: id.NewAnywhere()}
	theRun = id.RunID{UUID: id.NewAnywhere()}
	theKey = msg.Origin{Kind: lifecycle.OriginAPIKey, ID: id.NewAnywhere()}

	lawVault   = vault.New(vault.NewSecret32([32]byte{7}))
	lawAddress = cluster.Address{Kind: msg.KindRun, Tenant: tenant, ID: theRun.UUID}
)

func agentOf(t testing.TB, manifest string) *Agent {
	t.Helper()
	ag, err := prepare(json.RawMessage(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return ag
}

const plain = `{"model":{"provider":"simulated","name":"sim"}}`

// queuedRun is a run of a thread that was just accepted.
func queuedRun(t testing.TB, manifest string) State {
	s, err := FromAccepted(tenant, &msg.Accepted{
		Run: theRun, AgentID: id.AgentID(theRun), AgentVersion: 3, ThreadID: &thread, ThreadSeq: 1,
		Input: json.RawMessage(`{"text":"hi"}`), Origin: theKey, CreatedAt: t0,
	}, agentOf(t, manifest))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func decide(t testing.TB, s State, m any, at time.Time) decision {
	t.Helper()
	d, err := Machine{}.Decide(s, m, at)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return d
}

// runningRun is a run whose first step is open.
func runningRun(t testing.TB, manifest string) State {
	t.Helper()
	return decide(t, queuedRun(t, manifest), msg.Proceed{}, t0).Next
}

func answer(text string, calls ...model.Call) ModelAnswered {
	return ModelAnswered{Result: &model.Result{Text: text, Calls: calls, TokensIn: 10, TokensOut: 5}, Price: model.Price{InputPerMTok: 1e5, OutputPerMTok: 2e5}, Segments: []int32{0, int32(len(text))},
		Verdict: &Verdict{Answer: guardrail.Answer{Text: text}}}
}

func call(n int) model.Call {
	return model.Call{ID: fmt.Sprint("c", n), Name: "crm.find", Args: json.RawMessage(`{"q":1,"api_key":"k"}`)}
}

func at(m ModelAnswered, idx int) ModelAnswered { m.Idx = idx; return m }

func kinds(facts []any) (out []string) {
	for _, f := range facts {
		out = append(out, strings.TrimPrefix(fmt.Sprintf("%T", f), "run."))
	}
	return out
}

func frameTypes(d decision) (out []string) {
	for _, f := range frames(&d.Next, d.Facts) {
		out = append(out, f.Pos.String()+" "+string(f.Type))
	}
	return out
}

// TestRunStatus has the table of service.md, Run status, row by row; calls_test.go has the rows that
// involve approvals.
func TestRunStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		from   State
		msg    any
		to     lifecycle.RunStatus
		code   lifecycle.Failure
		frames []string
	}{
		{"start a run, accepted", State{Tenant: tenant, ID: theRun}, msg.StartOne{Run: theRun, Input: json.RawMessage(`"x"`), Origin: theKey},
			lifecycle.RunQueued, "", nil},
		{"queued, worker picks it up", queuedRun(t, plain), msg.Proceed{},
			lifecycle.RunRunning, "", []string{"1 run.started", "2 step.started"}},
		{"running, finishes", runningRun(t, plain), answer("hello"),
			lifecycle.RunSucceeded, "", []string{"3 run.completed"}},
		{"running, fails", runningRun(t, plain), ModelFailed{Code: lifecycle.FailModelUnavailable, Message: "m"},
			lifecycle.RunFailed, lifecycle.FailModelUnavailable, []string{"3 run.failed"}},
		{"queued, cancel", queuedRun(t, plain), msg.CancelRun{},
			lifecycle.RunCancelled, lifecycle.FailCancelled, []string{"1 run.failed"}},
		{"running, cancel", runningRun(t, plain), msg.CancelRun{},
			lifecycle.RunCancelled, lifecycle.FailCancelled, []string{"3 run.failed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c.from, c.msg, t0)
			if !d.Changed || d.Next.Status != c.to {
				t.Fatalf("became %q, changed %v", d.Next.Status, d.Changed)
			}
			if c.code != "" && (d.Next.Error == nil || d.Next.Error.Code != c.code) || c.code == "" && d.Next.Error != nil {
				t.Errorf("failed with %+v, want %q", d.Next.Error, c.code)
			}
			if c.to.Terminal() != (d.Next.FinishedAt != nil) || d.Next.Open != nil && c.to.Terminal() {
				t.Errorf("finished at %v with %v open", d.Next.FinishedAt, d.Next.Open)
			}
			if got := frameTypes(d); !slices.Equal(got, c.frames) {
				t.Errorf("frames %v, want %v", got, c.frames)
			}
		})
	}
}

func TestAnEndedRunStays(t *testing.T) {
	ended := []State{
		decide(t, runningRun(t, plain), answer("x"), t0).Next,
		decide(t, runningRun(t, plain), ModelFailed{Code: lifecycle.FailModelError}, t0).Next,
		decide(t, queuedRun(t, plain), msg.CancelRun{}, t0).Next,
	}
	for _, s := range ended {
		for _, m := range []any{msg.CancelRun{}, msg.Proceed{}, msg.SlotGranted{}, answer("y"), ModelFailed{}, TimeUp{}, durable.Activated{Epoch: 9},
			durable.Wake{}, durable.EffectFailed{Key: "llm/0"}, durable.Refused{Msg: answer("y")}, msg.StartOne{Run: theRun}} {
			d := decide(t, s, m, t0.Add(time.Hour))
			if d.Changed || !reflect.DeepEqual(d.Next, s) {
				t.Errorf("%s run was changed by %T", s.Status, m)
			}
			if st, ok := d.Reply.(msg.Status); ok != (m == any(msg.CancelRun{})) || ok && st != (msg.Status{Run: theRun, Status: s.Status}) {
				t.Errorf("%T replied %v", m, d.Reply)
			}
		}
		if owed := (Machine{}).Owed(s); len(owed) != 0 {
			t.Errorf("%s run owes %v", s.Status, owed)
		}
	}
}

func TestAnUnknownRunIsNotFound(t *testing.T) {
	for _, m := range []any{msg.CancelRun{}, msg.Proceed{}, durable.Wake{}} {
		if _, err := (Machine{}).Decide(State{}, m, t0); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

func TestARunWithoutAThreadStartsByItself(t *testing.T) {
	s := State{Tenant: tenant, ID: theRun, Agent: agentOf(t, plain)}
	d := decide(t, s, msg.StartOne{Run: theRun, AgentVersion: 2, Input: json.RawMessage(`"x"`), Origin: theKey}, t0)
	if d.Reply != any(msg.Started{Run: theRun}) || !d.Next.Ready || !slices.Equal(kinds(d.Facts), []string{"Created"}) {
		t.Fatalf("%+v", d)
	}
	if owed := (Machine{}).Owed(d.Next); len(owed) != 1 || owed[0].Key() != "slot" {
		t.Fatalf("owes %v", owed)
	}
	if again := decide(t, d.Next, msg.StartOne{Run: theRun}, t0); again.Changed || again.Reply != any(msg.Started{Run: theRun}) {
		t.Fatalf("a second start: %+v", again)
	}
	d = decide(t, d.Next, msg.SlotGranted{}, t0)
	if d.Next.Status != lifecycle.RunRunning {
		t.Fatal(d.Next.Status)
	}
}

func TestSlots(t *testing.T) {
	mc := Machine{Slots: true}
	s := queuedRun(t, plain)
	if d, _ := mc.Decide(s, msg.SlotGranted{}, t0); d.Changed {
		t.Error("a slot without a turn started the run")
	}
	d, err := mc.Decide(s, msg.Proceed{}, t0)
	if err != nil || d.Next.Status != lifecycle.RunQueued || !d.Next.Ready || !d.Changed {
		t.Fatalf("%+v %v", d, err)
	}
	if owed := mc.Owed(d.Next); len(owed) != 1 || owed[0] != durable.Effect(AcquireSlot{Run: theRun, CreatedAt: t0}) {
		t.Fatalf("owes %v", owed)
	}
	if again, _ := mc.Decide(d.Next, msg.Proceed{}, t0); again.Changed {
		t.Error("a second Proceed changed something")
	}
	if d, _ = mc.Decide(d.Next, msg.SlotGranted{}, t0); d.Next.Status != lifecycle.RunRunning {
		t.Error(d.Next.Status)
	}
}

func TestToolCallsThatAreNotGranted(t *testing.T) {
	s := runningRun(t, plain)
	d := decide(t, s, answer("let me see", call(1), call(2)), t0)
	want := []string{"3 step.started", "4 tool.called", "5 tool.result", "6 step.started", "7 tool.called", "8 tool.result", "9 step.started"}
	if got := frameTypes(d); !slices.Equal(got, want) {
		t.Errorf("frames %v", got)
	}
	if d.Next.Steps != 4 || d.Next.Open.Idx != 3 || d.Next.Seq != 9 || d.Next.Status != lifecycle.RunRunning {
		t.Errorf("%+v", d.Next)
	}
	var tools []StepEnded
	for _, f := range d.Facts {
		if e, ok := f.(StepEnded); ok && e.Kind == lifecycle.StepTool {
			tools = append(tools, e)
		}
		if b, ok := f.(StepBegan); ok && b.Kind == lifecycle.StepTool && string(b.Input) != `{"q":1,"api_key":"[redacted]"}` {
			t.Errorf("shows %s", b.Input)
		}
	}
	for i, e := range tools {
		var out struct{ Error, Message string }
		if err := json.Unmarshal(e.Output, &out); err != nil || out.Error != "TOOL_NOT_GRANTED" || out.Message == "" || e.Status != lifecycle.StepFailed {
			t.Errorf("call %d: %s %s %v", i, e.Status, e.Output, err)
		}
		if r := e.History.Results[0]; r.CallID != fmt.Sprint("c", i+1) || !r.IsError || r.Content != string(e.Output) {
			t.Errorf("the model gets %+v", r)
		}
	}
	// The model gets its own turn and the results in call order, unredacted.
	said := d.Next.Said
	if len(said) != 2 || len(said[0].Calls) != 2 || string(said[0].Calls[0].Args) != `{"q":1,"api_key":"k"}` || len(said[1].Results) != 2 || said[1].Results[1].CallID != "c2" {
		t.Errorf("said %+v", said)
	}
	if owed := (Machine{}).Owed(d.Next); len(owed) != 1 || owed[0].Key() != "llm/3" {
		t.Errorf("owes %v", owed)
	}
}

func TestMalformedArgumentsAreNotShown(t *testing.T) {
	d := decide(t, runningRun(t, plain), answer("", model.NewCall("c", "x", `{"password":"p`)), t0)
	if b := d.Facts[1].(StepBegan); string(b.Input) != `{"malformed":"[redacted]"}` {
		t.Errorf("shows %s", b.Input)
	}
}

// TestLimits has the row limits of open-parts.md, Manifest.
func TestLimits(t *testing.T) {
	with := func(limits string) string {
		return `{"model":{"provider":"simulated","name":"sim"},"limits":` + limits + `}`
	}
	for _, c := range []struct {
		name, limits string
		msg          any
		after        time.Duration
		fails        string
	}{
		{"max_steps is reached", `{"max_steps":3}`, answer("", call(1)), 0, ""},
		{"max_steps is passed by the next step", `{"max_steps":2}`, answer("", call(1)), 0, "max_steps"},
		{"max_steps is passed by the calls", `{"max_steps":2}`, answer("", call(1), call(2)), 0, "max_steps"},
		{"max_steps 1 is enough for an answer", `{"max_steps":1}`, answer("x"), 0, ""},
		{"max_steps counts the second try", `{"max_steps":1}`, ModelFailed{Broken: true}, 0, "max_steps"},
		{"max_tokens is reached", `{"max_tokens":15}`, answer("x"), 0, ""},
		{"max_tokens is passed", `{"max_tokens":14}`, answer("x"), 0, "max_tokens"},
		{"max_cost_usd is reached", `{"max_cost_usd":2}`, answer("x"), 0, ""},
		{"max_cost_usd is passed", `{"max_cost_usd":1.9}`, answer("x"), 0, "max_cost_usd"},
		{"max_seconds, in time", `{"max_seconds":2}`, answer("x"), 1999 * time.Millisecond, ""},
		{"max_seconds, the timer", `{"max_seconds":2}`, TimeUp{}, 2 * time.Second, "max_seconds"},
		{"max_seconds, the timer by another clock", `{"max_seconds":2}`, TimeUp{}, 1999 * time.Millisecond, "max_seconds"},
		{"max_seconds, an answer that came too late", `{"max_seconds":2}`, answer("x"), 2 * time.Second, "max_seconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, runningRun(t, with(c.limits)), c.msg, t0.Add(c.after))
			failed := d.Next.Status == lifecycle.RunFailed
			if failed != (c.fails != "") || failed && (d.Next.Error.Code != lifecycle.FailLimitExceeded || !strings.Contains(d.Next.Error.Message, c.fails+" of ")) {
				t.Errorf("%s %+v", d.Next.Status, d.Next.Error)
			}
			if d.Next.Steps > 3 {
				t.Errorf("%d steps", d.Next.Steps)
			}
		})
	}
}

func TestRunningTimeIsAddedUpOverActivations(t *testing.T) {
	s := runningRun(t, `{"model":{"provider":"simulated","name":"sim"},"limits":{"max_seconds":10}}`)
	s = decide(t, s, answer("", call(1)), t0.Add(4*time.Second)).Next
	if s.Ran != 4*time.Second {
		t.Fatalf("ran %v", s.Ran)
	}
	// The process dies and the run is loaded an hour later: that hour does not count.
	s.Since = time.Time{}
	back := t0.Add(time.Hour)
	s = decide(t, s, durable.Activated{Epoch: 2}, back).Next
	if left := s.deadline().Sub(back); s.Status != lifecycle.RunRunning || left != 6*time.Second {
		t.Fatalf("%s, %v left", s.Status, left)
	}
	if d := decide(t, s, at(answer("x"), s.Open.Idx), back.Add(6*time.Second)); d.Next.Status != lifecycle.RunFailed {
		t.Fatal("the limit does not hold over two activations")
	}
}

func TestModelFailures(t *testing.T) {
	t.Run("a broken stream is tried once more as a new step", func(t *testing.T) {
		s := runningRun(t, plain)
		broken := ModelFailed{Code: lifecycle.FailModelError, Message: "m", Broken: true, TokensIn: 3, TokensOut: 1}
		d := decide(t, s, broken, t0)
		if d.Next.Status != lifecycle.RunRunning || d.Next.Open.Idx != 1 || d.Facts[0].(StepEnded).Status != lifecycle.StepAbandoned {
			t.Fatalf("%+v", d)
		}
		if got := frameTypes(d); !slices.Equal(got, []string{"3 step.started"}) {
			t.Errorf("frames %v", got)
		}
		broken.Idx = 1
		d = decide(t, d.Next, broken, t0)
		if d.Next.Status != lifecycle.RunFailed || d.Next.Error.Code != lifecycle.FailModelError || d.Facts[0].(StepEnded).Status != lifecycle.StepFailed {
			t.Fatalf("%+v", d)
		}
		if d.Next.TokensIn != 6 || d.Next.TokensOut != 2 {
			t.Errorf("tokens %d %d", d.Next.TokensIn, d.Next.TokensOut)
		}
	})
	t.Run("each turn has its own second try", func(t *testing.T) {
		s := decide(t, runningRun(t, plain), ModelFailed{Broken: true}, t0).Next
		s = decide(t, s, at(answer("", call(1)), 1), t0).Next
		if d := decide(t, s, ModelFailed{Idx: 3, Broken: true}, t0); d.Next.Status != lifecycle.RunRunning {
			t.Error(d.Next.Error)
		}
	})
	t.Run("unavailable is not tried again here", func(t *testing.T) {
		d := decide(t, runningRun(t, plain), ModelFailed{Code: lifecycle.FailModelUnavailable}, t0)
		if d.Next.Error.Code != lifecycle.FailModelUnavailable {
			t.Error(d.Next.Error)
		}
	})
	t.Run("declined without a text", func(t *testing.T) {
		m := answer("")
		m.Result.Finish = model.FinishFilter
		if d := decide(t, runningRun(t, plain), m, t0); d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailModelError || d.Next.TokensIn != 10 {
			t.Errorf("%+v", d.Next)
		}
	})
	t.Run("declined after the first words, or with calls", func(t *testing.T) {
		for _, m := range []ModelAnswered{answer("half a sen"), answer("first", call(1)), answer("", call(1))} {
			m.Result.Finish = model.FinishFilter
			d := decide(t, runningRun(t, plain), m, t0)
			if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailModelError || d.Next.TokensIn != 10 || len(d.Facts) != 2 {
				t.Errorf("%+v, %d facts", d.Next, len(d.Facts))
			}
			if e := d.Facts[0].(StepEnded); e.Status != lifecycle.StepFailed || !strings.Contains(string(e.Output), `"finish":"refusal"`) || !strings.Contains(string(e.Output), m.Result.Text) {
				t.Errorf("the step ends %s with %s", e.Status, e.Output)
			}
		}
	})
	t.Run("cut off", func(t *testing.T) {
		for finish, shown := range map[model.Finish]bool{model.FinishLength: true, model.FinishOther: true, model.FinishStop: false, model.FinishCalls: false} {
			m := answer("half a sen")
			m.Result.Finish = finish
			d := decide(t, runningRun(t, plain), m, t0)
			if e := d.Facts[0].(StepEnded); d.Next.Status != lifecycle.RunSucceeded || strings.Contains(string(e.Output), `"finish":"`+string(finish)+`"`) != shown {
				t.Errorf("%s: %s, the step shows %s", finish, d.Next.Status, e.Output)
			}
			s := runningRun(t, plain)
			s.Input = []byte(`{"text":"q","options":{"deliverable":"html"}}`)
			d = decide(t, s, m, t0)
			if finish == model.FinishLength {
				if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailOutputInvalid || !strings.Contains(d.Next.Error.Message, "cut off") || d.Next.Delivers {
					t.Errorf("a deliverable is made from a cut answer: %+v", d.Next)
				}
			} else if !d.Next.Delivers {
				t.Errorf("%s: no deliverable: %+v", finish, d.Next.Error)
			}
		}
	})
	t.Run("a panic of the call", func(t *testing.T) {
		d := decide(t, runningRun(t, plain), durable.EffectFailed{Key: "llm/0", Cause: "secret detail"}, t0)
		if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailInternal || strings.Contains(d.Next.Error.Message, "secret") {
			t.Errorf("%+v", d.Next.Error)
		}
	})
	t.Run("messages of other steps are dropped", func(t *testing.T) {
		s := runningRun(t, plain)
		for _, m := range []any{at(answer("x"), 7), ModelFailed{Idx: 7}, TimeUp{Idx: 7}, durable.EffectFailed{Key: "llm/7"}, msg.Proceed{}, msg.SlotGranted{}, durable.TimerDue{}} {
			if d := decide(t, s, m, t0); d.Changed {
				t.Errorf("%T changed something", m)
			}
		}
	})
}

func TestRefusedRows(t *testing.T) {
	s := runningRun(t, plain)
	d := decide(t, s, durable.Refused{Msg: answer("bad bytes"), Cause: "column x"}, t0)
	if d.Next.Status != lifecycle.RunFailed || d.Next.Error.Code != lifecycle.FailInternal || strings.Contains(d.Next.Error.Message, "column") {
		t.Fatalf("%+v", d.Next.Error)
	}
	e := d.Facts[0].(StepEnded)
	if e.Output != nil || e.History != nil || e.TokensIn != 10 || d.Next.TokensIn != 10 {
		t.Errorf("%+v: the content is dropped, what was used is billed", e)
	}
	d = decide(t, queuedRun(t, plain), durable.Refused{Msg: msg.Proceed{}}, t0)
	if got := frameTypes(d); d.Next.Status != lifecycle.RunFailed || !slices.Equal(got, []string{"1 run.started", "2 run.failed"}) {
		t.Errorf("%s %v", d.Next.Status, got)
	}
	if _, err := (Machine{}).Decide(s, durable.Refused{Msg: msg.CancelRun{}}, t0); !errors.Is(err, problem.New(problem.CodeInternal, "")) {
		t.Error(err)
	}
	if _, err := (Machine{}).Decide(State{}, durable.Refused{Msg: msg.StartOne{}}, t0); !errors.Is(err, problem.Invalid("", "")) {
		t.Error(err)
	}
}

func TestAVersionThatCannotBeRunFailsTheRun(t *testing.T) {
	s := queuedRun(t, plain)
	s.Agent = nil
	if d := decide(t, s, msg.Proceed{}, t0); d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailInternal {
		t.Errorf("%+v", d.Next)
	}
	s = runningRun(t, plain)
	s.Agent = nil
	if d := decide(t, s, durable.Activated{Epoch: 2}, t0); d.Next.Error == nil || d.Next.Open != nil {
		t.Errorf("%+v", d.Next)
	}
}

func TestOutput(t *testing.T) {
	for _, c := range []struct{ name, manifest, input, text, output, reply, fails string }{
		{"text", `{}`, `"x"`, "a <b> & \"c\"", `{"text":"a <b> & \"c\""}`, `a <b> & "c"`, ""},
		{"output_schema", `{"output_schema":{"type":"object"}}`, `"x"`, "```json\n{\"n\": 1}\n```", "{\"text\":\"```json\\n{\\\"n\\\": 1}\\n```\",\"json\":{\"n\":1}}", "```json\n{\"n\": 1}\n```", ""},
		{"output_schema is not satisfied", `{"output_schema":{"type":"object"}}`, `"x"`, "[1]", ``, "", "output_schema"},
		{"a guardrail redacts", `{"guardrails":{"output":[{"kind":"regex","pattern":"x+","action":"redact"}]}}`, `"x"`, "axxb", `{"text":"a[redacted]b"}`, "a[redacted]b", ""},
		{"a guardrail blocks", `{"guardrails":{"output":[{"kind":"max_chars","value":2,"action":"block"}]}}`, `"x"`, "axxb", ``, "", "guardrails.output[0]"},
		{"a deliverable of an unknown kind", `{}`, `{"text":"q","options":{"deliverable":"doc"}}`, "x", ``, "", "deliverable"},
		{"other options", `{}`, `{"text":"q","options":{"tools":[]}}`, "x", `{"text":"x"}`, "x", ""},
		{"evidence without a citation, asked before", `{}`, `{"text":"q","options":{"evidence":true}}`, "x", ``, "", "evidence"},
		{"options of a one-off input of another shape", `{}`, `{"options":"evidence"}`, "x", `{"text":"x"}`, "x", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := runningRun(t, strings.Replace(c.manifest, "{", `{"model":{"provider":"simulated","name":"s"}`+map[bool]string{false: ","}[c.manifest == "{}"], 1))
			s.Input, s.AskedAgain = json.RawMessage(c.input), true
			m := answer(c.text)
			m.Verdict = judge(t.Context(), s.Agent.Rules, c.text)
			d := decide(t, s, m, t0)
			if c.fails != "" {
				if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailOutputInvalid || !strings.Contains(d.Next.Error.Message, c.fails) || d.Next.Output != nil {
					t.Fatalf("%+v %s", d.Next.Error, d.Next.Output)
				}
				return
			}
			if d.Next.Status != lifecycle.RunSucceeded || string(d.Next.Output) != c.output {
				t.Fatalf("%s %s", d.Next.Status, d.Next.Output)
			}
			if got := d.Facts[len(d.Facts)-1].(Ended).Reply; got != c.reply {
				t.Errorf("replied %q", got)
			}
		})
	}
}

func TestCrashAbandonsTheOpenStep(t *testing.T) {
	s := runningRun(t, plain)
	s.Since, s.Known, s.Said = time.Time{}, false, nil // as after loading
	d := decide(t, s, durable.Activated{Epoch: 2}, t0)
	if !d.Changed || d.Next.Open == nil || d.Next.Open.Idx != 1 || d.Next.Seq != 3 || d.Next.Steps != 2 {
		t.Fatalf("%+v", d.Next)
	}
	if e := d.Facts[0].(StepEnded); e.Status != lifecycle.StepAbandoned || e.Idx != 0 {
		t.Errorf("%+v", e)
	}
	if got := frameTypes(d); !slices.Equal(got, []string{"3 step.started"}) {
		t.Errorf("frames %v", got)
	}
	if d := decide(t, queuedRun(t, plain), durable.Activated{Epoch: 2}, t0); d.Changed {
		t.Error("a queued run was claimed without a change")
	}
}

func TestKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Kept{
			Ready: rapid.Bool().Draw(t, "ready"), Retrieved: rapid.Bool().Draw(t, "retrieved"), AskedAgain: rapid.Bool().Draw(t, "asked again"), Retried: rapid.Bool().Draw(t, "retried"), Ran: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "ran")) * time.Millisecond,
			Handoffs: rapid.IntRange(0, maxHandoffs).Draw(t, "handoffs"),
		}
		if k.Handoffs > 0 {
			k.Speaker, k.SpeakerVersion = id.AgentID(theRun), rapid.IntRange(1, 1<<30).Draw(t, "version")
		}
		b := k.Encode()
		if len(b) > 2048 {
			t.Fatalf("%d bytes", len(b))
		}
		back, err := DecodeKept(b)
		if err != nil || back != k {
			t.Fatalf("%+v became %+v, %v", k, back, err)
		}
	})
	for _, bad := range []string{`{"v":2}`, `{"v":0}`, `x`} {
		if _, err := DecodeKept([]byte(bad)); err == nil {
			t.Errorf("%s was read", bad)
		}
		if _, err := FromAccepted(tenant, &msg.Accepted{State: []byte(bad)}, nil); err == nil {
			t.Errorf("accepted with %s", bad)
		}
	}
	if k, err := DecodeKept([]byte(`{"v":1,"new_field":true}`)); err != nil || k != (Kept{}) {
		t.Error("a field of a later release was not ignored", err)
	}
}

func BenchmarkDecide(b *testing.B) {
	s, a := runningRun(b, plain), answer("hello")
	b.ReportAllocs()
	for b.Loop() {
		d, err := Machine{}.Decide(s, a, t0)
		if err != nil || !d.Changed {
			b.Fatal(err)
		}
	}
}

// A state is plain data: a decision can be repeated from it anywhere. Agent is shared and immutable.
func TestAStateHoldsNothingLive(t *testing.T) {
	seen := map[reflect.Type]bool{reflect.TypeFor[Agent](): true}
	var look func(path string, v reflect.Type)
	look = func(path string, v reflect.Type) {
		switch v.Kind() {
		case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Interface:
			t.Errorf("%s is a %s", path, v)
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			look(path, v.Elem())
		case reflect.Struct:
			if pkg := v.PkgPath(); pkg == "sync" || pkg == "sync/atomic" || pkg == "context" {
				t.Errorf("%s is a %s", path, v)
			}
			if seen[v] || v == reflect.TypeFor[time.Time]() {
				return
			}
			seen[v] = true
			for f := range v.Fields() {
				look(path+"."+f.Name, f.Type)
			}
		}
	}
	look("State", reflect.TypeFor[State]())
}
