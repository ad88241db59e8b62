package blackbox

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spanCollector is an OpenTelemetry collector.
type spanCollector struct {
	*httptest.Server

	mu    sync.Mutex // guards the fields below
	spans []*otlp.Span
	raw   strings.Builder // all that came, headers too
}

func newSpanCollector(t *testing.T) *spanCollector {
	t.Helper()
	s := &spanCollector{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &got) != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprintf(&s.raw, "%v\n%s\n", r.Header, body)
		for _, of := range got.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				s.spans = append(s.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(s.Server.Close)
	return s
}

// of returns the spans of a trace.
func (s *spanCollector) of(trace string) []*otlp.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*otlp.Span
	for _, sp := range s.spans {
		if hex.EncodeToString(sp.TraceId) == trace {
			found = append(found, sp)
		}
	}
	return found
}

// linked counts the spans that link to a trace.
func (s *spanCollector) linked(trace string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.spans {
		if len(sp.Links) == 1 && hex.EncodeToString(sp.Links[0].TraceId) == trace {
			n++
		}
	}
	return n
}

// attributesOf returns the attributes of a span that are texts, by name.
func attributesOf(s *otlp.Span) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

// A request and a run with a tool call are told as spans, without any content: prompt, arguments, the
// answers of tool and model, and the addresses and credentials of both hold a canary.
func TestSpansOfARunReachTheCollector(t *testing.T) {
	t.Parallel()
	traces := newSpanCollector(t)
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "OTEL_EXPORTER_OTLP_ENDPOINT="+traces.URL)
	n.start()
	ctx, c := within(t, time.Minute), n.tenant("traced")
	s := c.shop(t, ctx, "bearer", "canary-credential")
	s.set(func(h *toolHost) {
		h.call = func(w http.ResponseWriter, _ *http.Request, m rpc) { rpcText(w, m, `{\"told\":\"canary-result\"}`) }
	})
	_, model := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_refund", `{"id":7,"amount":1,"note":"canary-argument"}`), says("canary-answer"), says("canary-child"))
	agent := c.clerk(t, model, object{"instructions": "canary-instructions"}, s)
	hears := c.subscribe(t, ctx, newSink(t, answers(204)), "run.completed")

	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var started struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/agents/"+agent+"/runs", object{"input": "canary-prompt"}, &started, "traceparent", "00-"+trace+"-"+parent+"-01", "X-Request-Id", "request-1")
	if r := c.poll(t, ctx, started.RunID, "succeeded"); !strings.Contains(r.text(), "canary-answer") {
		t.Fatal(r.text())
	}
	eventually(t, ctx, "the delivery arrives", func() bool { return len(hears.arrivals()) == 1 })
	var made struct{ Workflow struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": "flow", "definition": object{"edges": []object{{"from": "look", "to": "talk"}}, "nodes": []object{
		flowNode("look", "tool", "tool", s.slug+".orders.refund", "args", object{"id": 1, "amount": 1, "note": "canary-node"}),
		flowNode("talk", "agent", "agent_id", agent, "input", "canary-input")}}}, &made)
	var flow struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/workflows/"+made.Workflow.ID+"/test-run", object{"input": "canary-flow"}, &flow)
	c.poll(t, ctx, flow.RunID, "succeeded")
	if err := n.signal(syscall.SIGTERM, 20*time.Second); err != nil { // what is queued is sent
		t.Fatal(err)
	}

	requests := traces.of(trace)
	if len(requests) != 1 || hex.EncodeToString(requests[0].ParentSpanId) != parent || requests[0].Name != "startRun" {
		t.Fatal(requests)
	}
	has := attributesOf(requests[0])
	for key, want := range map[string]string{"http.request.method": "POST", "http.route": "/v1/agents/{id}/runs", "svc.tenant_id": c.Tenant, "svc.request_id": "request-1", "svc.run_id": started.RunID} {
		if has[key] != want {
			t.Errorf("%s is %q, want %q", key, has[key], want)
		}
	}

	for run, want := range map[string][]string{
		started.RunID: {"model turn m", "model turn m", "run", "tool call " + s.slug + ".orders.refund"},
		flow.RunID:    {"run", "tool call " + s.slug + ".orders.refund"},
	} {
		trace := strings.ReplaceAll(run, "-", "")
		var shape []string
		for _, sp := range traces.of(trace) {
			has := attributesOf(sp)
			shape = append(shape, strings.TrimSpace(sp.Name+" "+has["svc.model"]+has["svc.tool"]))
			id, parent := hex.EncodeToString(sp.SpanId), hex.EncodeToString(sp.ParentSpanId)
			if whole := sp.Name == "run"; whole != (id == trace[16:]) || whole != (parent == "") || !whole && parent != trace[16:] {
				t.Errorf("span %s of %q", id, parent)
			}
			if sp.Status != nil || has["svc.tenant_id"] != c.Tenant {
				t.Error(sp)
			}
		}
		slices.Sort(shape)
		if !slices.Equal(shape, want) {
			t.Errorf("got %q, want %q", shape, want)
		}
	}
	if n := traces.linked(strings.ReplaceAll(flow.RunID, "-", "")); n != 1 {
		t.Errorf("%d runs link to the workflow's", n)
	}
	if attempts := traces.of(strings.ReplaceAll(hears.arrivals()[0].delivery, "-", "")); len(attempts) != 1 || attempts[0].Name != "webhook attempt" {
		t.Error(attempts)
	}

	traces.mu.Lock()
	defer traces.mu.Unlock()
	for _, secret := range []string{"canary", c.Key, "owner@example.com", s.URL, hears.URL, "sk-model"} {
		if strings.Contains(traces.raw.String(), secret) {
			t.Errorf("the collector was told %s", secret)
		}
	}
}

// Runs end while the collector hangs, and the node stops in time.
func TestACollectorThatHangsHoldsUpNoRun(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	n := newNode(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+hangs.URL)
	n.start()
	ctx, c := within(t, time.Minute), n.tenant("untraced")
	agent := c.publish(t, "Agent", object{"model": object{"provider": "simulated", "name": "m"}})
	for range 20 {
		c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say hello"), "succeeded")
	}
	if err := n.signal(syscall.SIGTERM, 20*time.Second); err != nil {
		t.Error(err)
	}
	if code := n.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The address of the collector is checked at the start, and the error names the variable only.
func TestTheCollectorsAddressIsChecked(t *testing.T) {
	t.Parallel()
	p, err := newProcess(dataDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.leave)
	n := &node{t, p}
	for _, url := range []string{"collector:4318", "grpc://collector:4317", "http://user:hidden@collector:4318"} {
		_, stderr, code := n.run([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url}, "", "serve")
		if code != 2 || !strings.Contains(stderr, "OTEL_EXPORTER_OTLP_ENDPOINT: ") || strings.Contains(stderr, "hidden") {
			t.Errorf("%s: code %d: %s", url, code, stderr)
		}
	}
}
