package blackbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/transport/model/fake"
)

// The main job, as a tenant's back end does it: an agent, a thread, a message, the stream, polling, the
// history, tokens.
func TestMainJob(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("main job")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	run := c.say(t, ctx, thread, "Where is my order?")

	frames := c.stream(t, ctx, run, "?replay=full", "", nil)
	if got := types(frames); got != "run.started step.started llm.delta run.completed" {
		t.Errorf("frames: %s", got)
	}
	checkStream(t, &job{thread: thread, run: run, frames: frames})
	var started struct {
		RunID   string `json:"run_id"`
		AgentID string `json:"agent_id"`
		Status  string
	}
	if err := json.Unmarshal(frames[0].Data, &started); err != nil || started.RunID != run || started.AgentID != agent || started.Status != "running" {
		t.Errorf("run.started: %s", frames[0].Data)
	}

	r := c.poll(t, ctx, run, "succeeded")
	if !strings.Contains(r.text(), "Where is my order?") || r.text() != textOf(frames, "llm.delta") {
		t.Errorf("answer %q, streamed %q", r.text(), textOf(frames, "llm.delta"))
	}
	if r.shape() != "llm:succeeded" || r.Run.ThreadID == nil || *r.Run.ThreadID != thread || r.Run.AgentID != agent || r.Run.Origin.Kind != "api_key" ||
		r.Run.StartedAt == nil || r.Run.FinishedAt == nil {
		t.Errorf("run %+v, steps %s", r.Run, r.shape())
	}
	if r.Run.TokensIn < 1 || r.Run.TokensOut < 1 || r.Run.CostUSD != 0 || r.Steps[0].TokensIn != r.Run.TokensIn || r.Steps[0].TokensOut != r.Run.TokensOut {
		t.Errorf("tokens: run %d/%d, step %d/%d, cost %v", r.Run.TokensIn, r.Run.TokensOut, r.Steps[0].TokensIn, r.Steps[0].TokensOut, r.Run.CostUSD)
	}

	second := c.say(t, ctx, thread, "And my invoice?")
	c.poll(t, ctx, second, "succeeded")
	var history struct {
		Items []struct {
			Role, Content string
			RunID         string `json:"run_id"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &history)
	var got []string
	for _, m := range history.Items {
		got = append(got, m.Role+" "+m.RunID)
	}
	want := []string{"user " + run, "assistant " + run, "user " + second, "assistant " + second}
	if !slices.Equal(got, want) || history.Items[1].Content != r.text() {
		t.Errorf("history %v, want %v", got, want)
	}
	var listed struct{ Items []client.RunView }
	c.ask(t, ctx, 200, "GET", "/v1/runs?status=succeeded&agent_id="+agent, nil, &listed)
	if len(listed.Items) != 2 || listed.Items[0].ID != second || listed.Items[1].ID != run {
		t.Errorf("runs, newest first: %+v", listed.Items)
	}
}

// A tenant without a thread: one-off runs with inputs of every shape.
func TestOneOffRuns(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("one-off")
	agent := c.publish(t, "Helper", simulatedModel)
	for name, input := range map[string]any{"a bare string": "/say yes", "text": object{"text": "/say yes"}, "input": object{"input": "/say yes"},
		"what only a message has": object{"text": "/say yes", "attachment_ids": []string{agent}}} {
		r := c.poll(t, ctx, c.runOnce(t, ctx, agent, input), "succeeded")
		sent, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		if r.text() != "yes" || r.Run.ThreadID != nil || string(r.Run.Input) != string(sent) {
			t.Errorf("%s: %q, input %s", name, r.text(), r.Run.Input)
		}
	}
}

// wire is a model protocol with a fake provider of its own.
type wire struct {
	kind   string
	fake   *fake.Server
	header string // that carries the credential
	prefix string
}

func (w wire) url() string {
	if w.kind == "openai" {
		return w.fake.OpenAI()
	}
	return w.fake.Anthropic()
}

const providerKey = "sk-of-the-tenant-7f3a"

var ownProviders atomic.Int64 // counts the providers, for their slugs

// ownProvider gives the tenant a provider with the replies, and an agent on it.
func ownProvider(t *testing.T, ctx context.Context, c *caller, kind string, replies ...fake.Reply) (wire, string) {
	t.Helper()
	server, err := fake.New(replies...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	w := wire{kind, server, "Authorization", "Bearer "}
	if kind == "anthropic" {
		w.header, w.prefix = "X-Api-Key", ""
	}
	slug := fmt.Sprintf("own-%d", ownProviders.Add(1)) // the port of a closed server may be used again
	made := c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": slug, "kind": kind, "base_url": w.url(),
		"credentials": object{"api_key": providerKey}, "prices": object{"large": object{"input_per_mtok": 1000, "output_per_mtok": 2000}}}, nil)
	if strings.Contains(string(made.body), providerKey) {
		t.Errorf("the credential is shown: %s", made.body)
	}
	agent := c.publish(t, "Agent of "+slug, object{"model": object{"provider": slug, "name": "large", "max_output_tokens": 4000, "thinking": object{"budget_tokens": 1024}}})
	return w, agent
}

// Each row is a behaviour of a provider and the resulting run, over both wires and with a tenant's own
// provider with sealed credentials.
func TestModelWires(t *testing.T) {
	t.Parallel()
	node := sharedNode(t)
	c := node.tenant("wires")
	call := fake.Call{ID: "call_1", Name: "crm.lookup", Args: []string{`{"cust`, `omer":"7"}`}}
	for _, row := range []struct {
		name     string
		replies  []fake.Reply
		status   string // of the run
		code     string // of the run's failure
		text     string
		steps    string
		frames   string
		requests int
		also     func(t *testing.T, w wire, r *runAnswer, frames []client.Frame)
	}{
		{
			name:    "text streams, tokens and cost are those of the provider",
			replies: []fake.Reply{{Text: []string{"Hello ", "wörld", " 🌍"}, In: 11, Out: 5}},
			status:  "succeeded", text: "Hello wörld 🌍", steps: "llm:succeeded", frames: "run.started step.started llm.delta run.completed", requests: 1,
			also: func(t *testing.T, w wire, r *runAnswer, _ []client.Frame) {
				if r.Run.TokensIn != 11 || r.Run.TokensOut != 5 || math.Abs(r.Run.CostUSD-0.021) > 1e-9 {
					t.Errorf("tokens %d/%d, cost %v", r.Run.TokensIn, r.Run.TokensOut, r.Run.CostUSD)
				}
				if got := w.fake.Requests()[0].Header.Get(w.header); got != w.prefix+providerKey {
					t.Errorf("%s: %q", w.header, got)
				}
			},
		},
		{
			name:    "thinking is shown apart from text",
			replies: []fake.Reply{{Thinking: []string{"hm, ", "well"}, Signature: "sig", Text: []string{"42"}, In: 3, Out: 4}},
			status:  "succeeded", text: "42", steps: "llm:succeeded", frames: "run.started step.started llm.thinking llm.delta run.completed", requests: 1,
			also: func(t *testing.T, _ wire, _ *runAnswer, frames []client.Frame) {
				if got := textOf(frames, "llm.thinking"); got != "hm, well" {
					t.Errorf("thinking %q", got)
				}
			},
		},
		{
			name:    "a tool that is not granted is answered with TOOL_NOT_GRANTED and the model goes on",
			replies: []fake.Reply{{Text: []string{"let me see"}, Calls: []fake.Call{call}, In: 5, Out: 6}, {Text: []string{"I may not look."}, In: 7, Out: 8}},
			status:  "succeeded", text: "I may not look.", steps: "llm:succeeded tool:failed llm:succeeded",
			frames: "run.started step.started llm.delta step.started tool.called tool.result step.started llm.delta run.completed", requests: 2,
			also: func(t *testing.T, w wire, r *runAnswer, frames []client.Frame) {
				if body := string(w.fake.Requests()[1].Body); !strings.Contains(body, "TOOL_NOT_GRANTED") || !strings.Contains(body, "call_1") {
					t.Errorf("the model gets %s", body)
				}
				if r.Run.TokensIn != 12 || r.Run.TokensOut != 14 || !strings.Contains(string(r.Steps[1].Output), "TOOL_NOT_GRANTED") {
					t.Errorf("tokens %d/%d, tool step %s", r.Run.TokensIn, r.Run.TokensOut, r.Steps[1].Output)
				}
				i := slices.IndexFunc(frames, func(f client.Frame) bool { return f.Type == "tool.result" })
				var d struct {
					Idx int
					OK  bool
				}
				if err := json.Unmarshal(frames[i].Data, &d); err != nil || d.OK || d.Idx != 1 {
					t.Errorf("tool.result %s", frames[i].Data)
				}
			},
		},
		{
			name:    "429 before the first token is tried again",
			replies: []fake.Reply{{Status: 429, Message: "slow down", RetryAfter: "1"}, {Text: []string{"late"}, In: 1, Out: 1}},
			status:  "succeeded", text: "late", steps: "llm:succeeded", frames: "run.started step.started llm.delta run.completed", requests: 2,
		},
		{
			name:    "500 three times is MODEL_UNAVAILABLE",
			replies: []fake.Reply{{Status: 500, Message: "oops"}},
			status:  "failed", code: "MODEL_UNAVAILABLE", steps: "llm:failed", frames: "run.started step.started run.failed", requests: 3,
		},
		{
			name:    "a refusal is MODEL_ERROR at once",
			replies: []fake.Reply{{Status: 400, Message: "no such model", ErrorType: "invalid_request_error"}},
			status:  "failed", code: "MODEL_ERROR", steps: "llm:failed", frames: "run.started step.started run.failed", requests: 1,
		},
		{
			name:    "a broken stream is tried once more as a new step",
			replies: []fake.Reply{{Text: []string{"half an ", "answer"}, Ending: fake.Drop, After: 1}, {Text: []string{"a whole answer"}, In: 2, Out: 2}},
			status:  "succeeded", text: "a whole answer", steps: "llm:abandoned llm:succeeded",
			frames: "run.started step.started llm.delta step.started llm.delta run.completed", requests: 2,
		},
		{
			name:    "a stream that breaks twice is MODEL_ERROR",
			replies: []fake.Reply{{Text: []string{"half an ", "answer"}, Ending: fake.Drop, After: 1}},
			status:  "failed", code: "MODEL_ERROR", steps: "llm:abandoned llm:failed",
			frames: "run.started step.started llm.delta step.started llm.delta run.failed", requests: 2,
		},
	} {
		for _, kind := range []string{"openai", "anthropic"} {
			t.Run(row.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				ctx := within(t, 30*time.Second)
				w, agent := ownProvider(t, ctx, c, kind, row.replies...)
				run := c.runOnce(t, ctx, agent, "Hello")
				frames := c.stream(t, ctx, run, "?replay=full", "", nil)
				r := c.poll(t, ctx, run, row.status)
				code := ""
				if r.Run.Error != nil {
					code = r.Run.Error.Code
				}
				if code != row.code || r.text() != row.text || r.shape() != row.steps || types(frames) != row.frames {
					t.Errorf("run %s %q %q, steps %s, frames %s", r.Run.Status, code, r.text(), r.shape(), types(frames))
				}
				if got := len(w.fake.Requests()); got != row.requests {
					t.Errorf("the provider was asked %d times, want %d", got, row.requests)
				}
				if row.also != nil {
					row.also(t, w, r, frames)
				}
				// The text of an abandoned step was never committed and is no part of the answer.
				kept := slices.DeleteFunc(frames, func(f client.Frame) bool {
					var d struct{ Idx int }
					return (f.Type == "llm.delta" || f.Type == "llm.thinking") && json.Unmarshal(f.Data, &d) == nil && r.Steps[d.Idx].Status == "abandoned"
				})
				if again := c.stream(t, ctx, run, "?replay=full", "", nil); !slices.Equal(told(kept), told(again)) {
					t.Errorf("live\n%s\nreplayed\n%s", strings.Join(told(kept), "\n"), strings.Join(told(again), "\n"))
				}
			})
		}
	}
}

func TestACancelClosesTheUpstreamConnection(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("cancel")
	for _, kind := range []string{"openai", "anthropic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 15*time.Second)
			w, agent := ownProvider(t, ctx, c, kind, fake.Reply{Text: []string{"and then ", "never"}, Ending: fake.Silence, After: 1})
			run := c.runOnce(t, ctx, agent, "tell")
			var status struct {
				RunID  string `json:"run_id"`
				Status string
			}
			frames := c.stream(t, ctx, run, "", "", func(f client.Frame) bool {
				if f.Type == "llm.delta" {
					c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, &status)
				}
				return true
			})
			if status.RunID != run || status.Status != "cancelled" {
				t.Errorf("cancel answered %+v", status)
			}
			select {
			case err := <-w.fake.Requests()[0].Done:
				if err == nil {
					t.Error("the provider ended its answer")
				}
			case <-ctx.Done():
				t.Error("the upstream connection stays open")
			}
			last := frames[len(frames)-1]
			if last.Type != "run.failed" || !strings.Contains(string(last.Data), `"CANCELLED"`) {
				t.Errorf("terminal frame %s %s", last.Type, last.Data)
			}
			if r := c.poll(t, ctx, run, "cancelled"); r.Run.Error == nil || r.Run.Error.Code != "CANCELLED" {
				t.Errorf("run %+v", r.Run)
			}
			c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, &status)
			if status.Status != "cancelled" {
				t.Errorf("the second cancel answered %+v", status)
			}
		})
	}
}

// OPENAI_* and ANTHROPIC_* serve every tenant; a tenant's own provider with that name takes precedence.
func TestDeploymentWideProviders(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("deployment")
	shared.openAI.Script(fake.Reply{Text: []string{"from openai"}})
	shared.anthropic.Script(fake.Reply{Text: []string{"from anthropic"}})
	for provider, key := range map[string][2]string{"openai": {"Authorization", "Bearer sk-deployment-openai"}, "anthropic": {"X-Api-Key", "sk-deployment-anthropic"}} {
		agent := c.publish(t, "On "+provider, object{"model": object{"provider": provider, "name": "m"}})
		if r := c.poll(t, ctx, c.runOnce(t, ctx, agent, "hi"), "succeeded"); r.text() != "from "+provider {
			t.Errorf("%s: %q", provider, r.text())
		}
		server := map[string]*fake.Server{"openai": shared.openAI, "anthropic": shared.anthropic}[provider]
		if got := server.Requests()[0].Header.Get(key[0]); got != key[1] {
			t.Errorf("%s: %s is %q", provider, key[0], got)
		}
	}
	own, err := fake.New(fake.Reply{Text: []string{"from my own"}})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": "openai", "kind": "openai", "base_url": own.OpenAI(), "credentials": object{"api_key": "sk-mine"}}, nil)
	agent := c.publish(t, "On mine", object{"model": object{"provider": "openai", "name": "m"}})
	if r := c.poll(t, ctx, c.runOnce(t, ctx, agent, "hi"), "succeeded"); r.text() != "from my own" {
		t.Errorf("own provider: %q", r.text())
	}
}

// script has steps of every kind that the simulated model supports.
const script = "/think let me think\n/say first\n/call crm.lookup {\"id\":7}\n/tokens 20\n/say äöü 🌍 done"

// Every form in which the stream of a finished run can be requested.
func TestStreamsOfAFinishedRun(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("finished")
	agent := c.publish(t, "Helper", simulatedModel)
	// The second run is queued until its reader is connected.
	thread := c.thread(t, ctx, agent)
	first := c.say(t, ctx, thread, "/delay 1s\n/tokens 60") // runs until it is cancelled
	run := c.say(t, ctx, thread, script)
	watched := c.watch(t, ctx, run, "")
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+first+"/cancel", nil, nil)
	live := <-watched
	if got, want := types(live), "run.started step.started llm.thinking llm.delta step.started tool.called tool.result step.started llm.delta run.completed"; got != want {
		t.Errorf("live: %s\nwant  %s", got, want)
	}
	t.Run("replay=full is the live stream", func(t *testing.T) {
		full := c.stream(t, ctx, run, "?replay=full", "", nil)
		if !slices.Equal(told(full), told(live)) {
			t.Errorf("live\n%s\nreplayed\n%s", strings.Join(told(live), "\n"), strings.Join(told(full), "\n"))
		}
	})
	for query, want := range map[string]string{
		"":          "run.started step.started llm.thinking step.started step.started run.completed",
		"?since=-1": "run.started step.started llm.thinking step.started step.started run.completed",
		"?since=0":  "step.started step.started run.completed",
		"?since=1":  "step.started run.completed",
		"?since=2":  "run.completed",
		"?since=99": "run.completed",
	} {
		t.Run("since "+query, func(t *testing.T) {
			if got := types(c.stream(t, ctx, run, query, "", nil)); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
	t.Run("Last-Event-ID gives the frames after it", func(t *testing.T) {
		for i, f := range live {
			if i == len(live)-1 {
				break
			}
			rest := c.stream(t, ctx, run, "", f.ID, nil)
			if got, want := told(rest), told(live[i+1:]); !slices.Equal(got, want) {
				t.Errorf("after %s:\n%s\nwant\n%s", f.ID, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
	t.Run("an invalid Last-Event-ID counts as none", func(t *testing.T) {
		plain := told(c.stream(t, ctx, run, "", "", nil))
		for _, id := range []string{"x", "-1", "0", "1.x", "9999999999999999999999", "7777", "1.5.6"} {
			if got := told(c.stream(t, ctx, run, "", id, nil)); !slices.Equal(got, plain) {
				t.Errorf("%q: %s", id, strings.Join(got, "\n"))
			}
		}
	})
	t.Run("a value of since that is not a number is VALIDATION", func(t *testing.T) {
		for _, query := range []string{"?since=x", "?since=", "?replay=half"} {
			if a := c.ask(t, ctx, 400, "GET", "/v1/runs/"+run+"/events"+query, nil, nil); a.code() != "VALIDATION" {
				t.Errorf("%s: %s", query, a)
			}
		}
	})
	t.Run("the server closes at once", func(t *testing.T) {
		raw := c.rawStream(t, ctx, run, "?replay=full")
		if !strings.Contains(raw, "event: run.completed\n") || !strings.HasSuffix(raw, "\n\n") {
			t.Errorf("%q", raw)
		}
	})
}

func TestQueuedRunsStream(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("queued")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	first := c.say(t, ctx, thread, "/delay 1s\n/tokens 60") // runs until it is cancelled
	second := c.say(t, ctx, thread, "/say second")
	third := c.say(t, ctx, thread, "/say third")
	c.poll(t, ctx, first, "running")

	cancelled, waiting := c.watch(t, ctx, second, ""), c.watch(t, ctx, third, "")
	var status struct{ Status string }
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+second+"/cancel", nil, &status)
	if status.Status != "cancelled" {
		t.Errorf("cancel: %+v", status)
	}
	if got := types(<-cancelled); got != "run.failed" {
		t.Errorf("a run cancelled while queued showed its reader %s", got)
	}
	if got := types(c.stream(t, ctx, second, "?replay=full", "", nil)); got != "run.failed" {
		t.Errorf("and later %s", got)
	}
	if r := c.read(t, ctx, second); len(r.Steps) != 0 || r.Run.StartedAt != nil || r.Run.Error == nil || r.Run.Error.Code != "CANCELLED" {
		t.Errorf("run %+v with steps %s", r.Run, r.shape())
	}
	select {
	case frames := <-waiting:
		t.Errorf("a queued run's stream ended with %s", types(frames))
	default:
	}
	if r := c.read(t, ctx, third); r.Run.Status != "queued" {
		t.Errorf("third is %s", r.Run.Status)
	}
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+first+"/cancel", nil, nil)
	if got := types(<-waiting); got != "run.started step.started llm.delta run.completed" {
		t.Errorf("a queued run showed %s", got)
	}
	if got := c.read(t, ctx, third).text(); got != "third" {
		t.Errorf("third answers %q", got)
	}
}

// A reader that joins in the middle of a step gets the text so far in one frame, then the rest.
func TestJoiningInTheMiddleOfAStep(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("join")
	agent := c.publish(t, "Helper", simulatedModel)
	run := c.runOnce(t, ctx, agent, "/think well\n/delay 20ms\n/tokens 150")
	var early <-chan []client.Frame
	n := 0
	seen := ""
	whole := c.stream(t, ctx, run, "?replay=full", "", func(f client.Frame) bool {
		if f.Type == "llm.delta" {
			if n++; n <= 20 {
				seen += textOf([]client.Frame{f}, "llm.delta")
			}
			if n == 20 {
				early = c.watch(t, ctx, run, "")
			}
		}
		return true
	})
	late := <-early
	if got := types(late); got != "run.started step.started llm.thinking llm.delta run.completed" {
		t.Errorf("the joining reader gets %s", got)
	}
	first := slices.IndexFunc(late, func(f client.Frame) bool { return f.Type == "llm.delta" })
	if first < 0 || !strings.HasPrefix(textOf(late[first:first+1], "llm.delta"), seen) {
		t.Errorf("the first text %q does not begin with the text so far: %q", textOf(late[first:first+1], "llm.delta"), seen)
	}
	if len(late) < first+5 {
		t.Errorf("only %d frames after joining: the run had ended", len(late)-first)
	}
	if !slices.Equal(told(late), told(whole)) {
		t.Errorf("joined\n%s\nwhole\n%s", strings.Join(told(late), "\n"), strings.Join(told(whole), "\n"))
	}
}

// cutting is a client's connection that breaks after some bytes of each response, at most limit.
type cutting struct {
	http.RoundTripper
	limit int
}

func (x *cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := x.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &cutBody{resp.Body, 1 + rand.IntN(x.limit)}
	}
	return resp, err
}

type cutBody struct {
	io.ReadCloser
	left int
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Connections that break anywhere, also inside a frame, lose nothing and repeat nothing.
func TestStreamsCutAnywhereAreExact(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	c := sharedNode(t).tenant("cut")
	agent := c.publish(t, "Helper", simulatedModel)
	const patience = 300 // bytes; doubled for a client that got no whole frame
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			run := c.runOnce(t, ctx, agent, "/delay 2ms\n/say one\n/call crm.lookup {}\n/delay 1ms\n/think hm\n/tokens 300")
			j := &job{run: run}
			cuts, last := 0, ""
			connection := &cutting{c.HTTP.Transport, patience}
			fragile := *c
			fragile.HTTP = &http.Client{Transport: connection}
			for {
				before := len(j.frames)
				ended, err := fragile.FollowOnce(ctx, run, "?replay=full", &last, func(f client.Frame) error {
					j.frames = append(j.frames, f)
					return nil
				})
				if ended {
					break
				}
				if !errors.As(err, new(client.BrokenStream)) || ctx.Err() != nil {
					t.Errorf("after %d cuts: %v", cuts, err)
					return
				}
				cuts++
				if connection.limit *= 2; len(j.frames) > before {
					connection.limit = patience
				}
			}
			if cuts < 5 {
				t.Errorf("only %d cuts: the test is void", cuts)
			}
			checkStream(t, j)
			if full := c.stream(t, ctx, run, "?replay=full", "", nil); !slices.Equal(told(j.frames), told(full)) {
				t.Errorf("read over %d cuts\n%s\nat once\n%s", cuts, strings.Join(told(j.frames), "\n"), strings.Join(told(full), "\n"))
			}
		})
	}
	wg.Wait()
}

func TestAVanishedClientLeavesTheRunRunning(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("vanish")
	agent := c.publish(t, "Helper", simulatedModel)
	run := c.runOnce(t, ctx, agent, "/delay 60ms\n/tokens 60")
	c.stream(t, ctx, run, "", "", func(f client.Frame) bool { return f.Type != "llm.delta" })
	if r := c.read(t, ctx, run); terminalStatus[r.Run.Status] {
		t.Errorf("the run ended before its reader hung up: the test is void")
	}
	c.poll(t, ctx, run, "succeeded")
}

// A reader that never reads is cut; its run and the other readers of the run are not affected.
func TestAReaderThatNeverReadsIsCut(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("stuck")
	chunk := strings.Repeat("the reader is not there ", 340)
	deltas := make([]string, 360) // some 3 MB
	for i := range deltas {
		deltas[i] = chunk
	}
	// The run is queued behind one that never ends by itself until its readers are connected: a later reader
	// may have to wait for the text so far.
	own, agent := ownProvider(t, ctx, c, "openai", fake.Reply{Ending: fake.Silence}, fake.Reply{Text: deltas, Delay: 8 * time.Millisecond, In: 1, Out: 1})
	thread := c.thread(t, ctx, agent)
	first := c.say(t, ctx, thread, "wait")
	eventually(t, ctx, "the model is asked", func() bool { return len(own.fake.Requests()) == 1 })
	run := c.say(t, ctx, thread, "go")

	u, err := url.Parse(c.Base)
	if err != nil {
		t.Fatal(err)
	}
	type reader struct {
		net.Conn
		r *bufio.Reader
	}
	var stuck []reader
	for range 4 {
		dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		}}
		conn, err := dialer.DialContext(ctx, "tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /v1/runs/%s/events?replay=full HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Tenant-Id: %s\r\nAccept: text/event-stream\r\n\r\n", run, u.Host, c.Key, c.Tenant)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		r := bufio.NewReader(conn)
		for line := ""; line != ": ok\n"; {
			if line, err = r.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		stuck = append(stuck, reader{conn, r})
	}
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+first+"/cancel", nil, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			frames, err := c.streamOnce(ctx, run, "?replay=full", "", nil)
			if err != nil || len(textOf(frames, "llm.delta")) != len(chunk)*len(deltas) {
				t.Errorf("another reader of the run: %v, %d bytes of %d", err, len(textOf(frames, "llm.delta")), len(chunk)*len(deltas))
			}
		})
	}
	wg.Wait()
	c.poll(t, ctx, run, "succeeded")
	for _, conn := range stuck {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		got, err := io.ReadAll(conn.r)
		if errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(net.Error)) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection was not cut: %v after %d bytes", err, len(got))
		}
		if len(got) == 0 || strings.Contains(string(got), "run.completed") {
			t.Errorf("the reader that never reads was sent everything (%d bytes)", len(got))
		}
	}
}

// Fifty simultaneous posts under one Idempotency-Key make one run and get one response.
func TestFiftyPostsWithOneKeyAreOneRun(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("fifty")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	for name, path := range map[string]string{"message": "/v1/threads/" + thread + "/messages", "one-off": "/v1/agents/" + agent + "/runs"} {
		body := object{"content": "once"}
		other := object{"content": "twice"}
		if name == "one-off" {
			body, other = object{"input": "once"}, object{"input": "twice"}
		}
		answers := make([]answer, 50)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				a, err := c.do(ctx, "POST", path, body, "Idempotency-Key", name)
				if err != nil {
					t.Error(err)
				}
				answers[i] = a
			})
		}
		wg.Wait()
		for i, a := range answers {
			if a.status != 202 || string(a.body) != string(answers[0].body) {
				t.Errorf("%s %d: %s, want %s", name, i, a, answers[0])
			}
		}
		if a := c.ask(t, ctx, 409, "POST", path, other, nil, "Idempotency-Key", name); a.code() != "IDEMPOTENCY_CONFLICT" {
			t.Errorf("%s with another body: %s", name, a)
		}
	}
	var runs struct{ Items []client.RunView }
	c.ask(t, ctx, 200, "GET", "/v1/runs?agent_id="+agent, nil, &runs)
	if len(runs.Items) != 2 {
		t.Errorf("%d runs, want one of the message and one without a thread", len(runs.Items))
	}
	var messages struct{ Items []struct{ Role string } }
	for _, r := range runs.Items {
		c.poll(t, ctx, r.ID, "succeeded")
	}
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &messages)
	if len(messages.Items) != 2 {
		t.Errorf("messages %+v", messages.Items)
	}
}

// A key is remembered over kill -9, with the whole response, secrets included.
func TestReplaysSurviveKill(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := newNode(t)
	n.start()
	c := n.tenant("replay")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	rows := []struct {
		name, path string
		status     int
		body       object
	}{
		{"message", "/v1/threads/" + thread + "/messages", 202, object{"content": "hi"}},
		{"one-off run", "/v1/agents/" + agent + "/runs", 202, object{"input": "hi"}},
		{"thread", "/v1/threads", 200, object{"agent_id": agent}},
		{"agent", "/v1/agents", 201, object{"name": "Another", "manifest": simulatedModel}},
		{"version", "/v1/agents/" + agent + "/versions", 201, object{"manifest": simulatedModel}},
		{"API key", "/v1/api-keys", 201, object{"name": "another"}},
	}
	first := map[string]string{}
	for _, row := range rows {
		first[row.name] = string(c.ask(t, ctx, row.status, "POST", row.path, row.body, nil, "Idempotency-Key", "k").body)
		if again := c.ask(t, ctx, row.status, "POST", row.path, row.body, nil, "Idempotency-Key", "k"); string(again.body) != first[row.name] {
			t.Errorf("%s, at once: %s, want %s", row.name, again.body, first[row.name])
		}
	}
	if !strings.Contains(first["API key"], `"secret":"svc_`) {
		t.Errorf("API key: %s", first["API key"])
	}
	n.kill()
	n.start()
	for _, row := range rows {
		if again := c.ask(t, ctx, row.status, "POST", row.path, row.body, nil, "Idempotency-Key", "k"); string(again.body) != first[row.name] {
			t.Errorf("%s, after kill -9: %s, want %s", row.name, again.body, first[row.name])
		}
		row.body["extra"] = 1
		if a, err := c.do(ctx, "POST", row.path, row.body, "Idempotency-Key", "k"); err != nil || a.status != 409 && a.status != 400 {
			t.Errorf("%s with another body: %v %s", row.name, err, a)
		}
	}
	for path, want := range map[string]int{"/v1/runs": 2, "/v1/threads": 2, "/v1/agents": 2, "/v1/agents/" + agent + "/versions": 2, "/v1/api-keys": 2} {
		var list struct{ Items []any }
		if c.ask(t, ctx, 200, "GET", path, nil, &list); len(list.Items) != want {
			t.Errorf("%s lists %d, want %d", path, len(list.Items), want)
		}
	}
}

// A thousand threads at once, each with a message: all get an answer.
func TestAThousandThreadsAtOnce(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	c := sharedNode(t).tenant("thousand")
	agent := c.publish(t, "Helper", simulatedModel)
	todo := make(chan int, 1000)
	for i := range 1000 {
		todo <- i
	}
	close(todo)
	runs := make([]string, 1000)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range todo {
				var thread struct{ ID string }
				var posted struct {
					RunID string `json:"run_id"`
				}
				if err := c.Call(ctx, "POST", "/v1/threads", object{"agent_id": agent}, &thread); err != nil {
					t.Error(err)
					return
				}
				if err := c.Call(ctx, "POST", "/v1/threads/"+thread.ID+"/messages", object{"content": fmt.Sprintf("/say answer %d", i)}, &posted); err != nil {
					t.Error(err)
					return
				}
				runs[i] = posted.RunID
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	again := make(chan int, len(runs))
	for i := range runs {
		again <- i
	}
	close(again)
	for range 64 {
		wg.Go(func() {
			for i := range again {
				frames, err := c.streamOnce(ctx, runs[i], "?replay=full", "", nil)
				if want := fmt.Sprintf("answer %d", i); err != nil || textOf(frames, "llm.delta") != want || types(frames) != "run.started step.started llm.delta run.completed" {
					t.Errorf("run %d: %v, %s %q", i, err, types(frames), textOf(frames, "llm.delta"))
				}
			}
		})
	}
	wg.Wait()
}

// Twenty simultaneous messages on one thread: the runs follow one another in the order in which the messages
// were accepted, which is the history's.
func TestRunsOfOneThreadGoInOrder(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("order")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	posted := make([]struct {
		RunID string `json:"run_id"`
	}, 20)
	var wg sync.WaitGroup
	for i := range posted {
		wg.Go(func() {
			if err := c.Call(ctx, "POST", "/v1/threads/"+thread+"/messages", object{"content": fmt.Sprintf("/delay 1ms\n/say %d", i)}, &posted[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	content := map[string]string{}
	for i, p := range posted {
		c.poll(t, ctx, p.RunID, "succeeded")
		content[p.RunID] = fmt.Sprint(i)
	}
	var history struct {
		Items []struct {
			Role, Content string
			RunID         string `json:"run_id"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &history)
	if len(history.Items) != 40 {
		t.Fatalf("%d messages, want 40", len(history.Items))
	}
	var before time.Time
	seen := map[string]bool{}
	for i := 0; i < 40; i += 2 {
		user, reply := history.Items[i], history.Items[i+1]
		if user.Role != "user" || reply.Role != "assistant" || user.RunID != reply.RunID || seen[user.RunID] || reply.Content != content[user.RunID] {
			t.Errorf("at %d: %+v, %+v", i, user, reply)
		}
		seen[user.RunID] = true
		r := c.read(t, ctx, user.RunID)
		if r.Run.StartedAt.Before(before) {
			t.Errorf("run %d began at %s, the one before ended at %s", i/2, r.Run.StartedAt, before)
		}
		before = *r.Run.FinishedAt
	}
}

// SIGTERM while a client waits for a hanging tool server: the client gets a response, and the process ends in
// time with code 0.
func TestSIGTERMDoesNotWaitForAHangingToolServer(t *testing.T) {
	t.Parallel()
	asked, over := make(chan struct{}, 100), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-over
	}))
	defer hangs.Close()
	defer close(over)
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")
	n.start()
	c := n.tenant("hangs")
	ctx := within(t, 40*time.Second)
	var server struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/mcp-servers", object{"slug": "hangs", "name": "Hangs", "transport": "http", "endpoint": hangs.URL, "auth_kind": "none"}, &server)
	type result struct {
		answer
		err error
	}
	told := make(chan result, 1)
	go func() {
		a, err := c.do(ctx, "POST", "/v1/mcp-servers/"+server.ID+"/test", object{})
		told <- result{a, err}
	}()
	<-asked
	begin := time.Now()
	if err := n.signal(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if code := n.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, n.logged())
	}
	if r := <-told; r.err != nil || r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), "UNAVAILABLE") {
		t.Errorf("the waiting client got %s, %v", r.answer, r.err)
	}
	t.Logf("ended %s after SIGTERM", time.Since(begin).Round(time.Millisecond))
}

// SIGTERM under load with open streams: the process ends in time with code 0, and the next one continues its
// work.
func TestSIGTERMUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "SVC_DRAIN_TIMEOUT=1s") // the long run takes longer
	n.start()
	c := n.tenant("term")
	agent := c.publish(t, "Helper", simulatedModel)
	ctx := within(t, 80*time.Second)
	type result struct {
		jobs []*job
		err  error
	}
	done := make(chan result, 1)
	const messages = 4
	go func() {
		jobs, err := workload(ctx, c, agent, "term", 24, messages, func(i, m int) string {
			return fmt.Sprintf("/delay 5ms\n/tokens %d", 20+rand.IntN(60))
		})
		done <- result{jobs, err}
	}()
	eventually(t, ctx, "some runs", func() bool {
		var runs struct{ Items []client.RunView }
		return c.Call(ctx, "GET", "/v1/runs?status=succeeded&agent_id="+agent, nil, &runs) == nil && len(runs.Items) >= 10
	})
	// This stream stays open for longer than the process lives.
	long := c.runOnce(t, ctx, c.publish(t, "Long", simulatedModel), "/delay 20ms\n/tokens 200")
	longer := make(chan error, 1)
	j := &job{run: long}
	begun := make(chan struct{})
	go func() {
		var once sync.Once
		longer <- c.Follow(ctx, long, "?replay=full", func(f client.Frame) error {
			j.frames = append(j.frames, f)
			if f.Type == "llm.delta" {
				once.Do(func() { close(begun) })
			}
			return nil
		})
	}()
	select {
	case <-begun:
	case <-ctx.Done():
		t.Fatal("no frame came")
	}
	begin := time.Now()
	if err := n.signal(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if code := n.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	t.Logf("ended %s after SIGTERM", time.Since(begin).Round(time.Millisecond))
	n.start()
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	for _, j := range got.jobs {
		checkStream(t, j)
	}
	if err := <-longer; err != nil {
		t.Error(err)
	}
	checkStream(t, j)
	r := c.poll(t, ctx, long, "succeeded")
	if r.shape() != "llm:abandoned llm:succeeded" {
		t.Errorf("the run over two processes has steps %s", r.shape())
	}
	checkStore(t, c, agent, got.jobs, messages)
}
