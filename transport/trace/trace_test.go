package trace

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/span"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a collector.
type receiver struct {
	*httptest.Server

	mu      sync.Mutex // guards the fields below
	batches []*wire.ResourceSpans
	header  http.Header
	status  int
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{status: 200}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var got collector.ExportTraceServiceRequest
		if err != nil || q.URL.Path != "/base/v1/traces" || proto.Unmarshal(body, &got) != nil {
			t.Errorf("%s %s: %v", q.Method, q.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.header = q.Header; r.status == 200 {
			r.batches = append(r.batches, got.ResourceSpans...)
		}
		w.WriteHeader(r.status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) spans() (all []*wire.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.batches {
		for _, s := range b.ScopeSpans {
			all = append(all, s.Spans...)
		}
	}
	return all
}

func open(t *testing.T, cfg Config) *Tracer {
	t.Helper()
	cfg.Version, cfg.Node = "1.2.3", id.MemberID{UUID: id.NewAnywhere()}
	tracer, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func stop(t *testing.T, tracer *Tracer, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := tracer.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func show(as []*common.KeyValue) string {
	var b strings.Builder
	for _, a := range as {
		b.WriteString(a.Key + "=")
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			b.WriteString(v.StringValue)
		default:
			b.WriteString(strings.TrimSpace(strings.SplitN(a.Value.String(), ":", 2)[1]))
		}
		b.WriteString(" ")
	}
	return b.String()
}

var (
	began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ended = began.Add(3 * time.Second)
	owner = id.TenantID{UUID: id.NewAnywhere()}
)

func TestNoEndpointIsNoTracer(t *testing.T) {
	tracer, err := Open(t.Context(), Config{})
	if tracer != nil || err != nil {
		t.Fatal(tracer, err)
	}
	if n := testing.AllocsPerRun(100, func() {
		tracer.Request(span.Request{})
		tracer.Run(span.Run{})
		tracer.Step(span.Step{})
		tracer.Delivery(span.Delivery{})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	stop(t, tracer, time.Second)
}

func TestSpansOfARunShareItsTrace(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k1")
	t.Setenv("OTEL_SERVICE_NAME", "agents")
	r := newReceiver(t)
	tracer := open(t, Config{Endpoint: r.URL + "/base"})
	run, parent := id.RunID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}
	agent := id.AgentID{UUID: id.NewAnywhere()}
	tracer.Run(span.Run{Tenant: owner, ID: run, Parent: &parent, Agent: agent, Began: began, Ended: ended, Status: lifecycle.RunFailed, Code: lifecycle.FailInternal})
	tracer.Step(span.Step{Tenant: owner, Run: run, Idx: 1, Kind: lifecycle.StepLLM, Name: "m\xff", OK: true, Began: began, Ended: ended})
	tracer.Step(span.Step{Tenant: owner, Run: run, Idx: 2, Kind: lifecycle.StepTool, Name: "shop.refund", Began: ended, Ended: began})
	stop(t, tracer, 10*time.Second)

	spans := r.spans()
	if len(spans) != 3 {
		t.Fatal(spans)
	}
	whole, turn, call := spans[0], spans[1], spans[2]
	for _, s := range spans {
		if !bytes.Equal(s.TraceId, run.UUID[:]) || len(s.SpanId) != 8 || s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Error(s)
		}
	}
	if whole.ParentSpanId != nil || !bytes.Equal(turn.ParentSpanId, whole.SpanId) || !bytes.Equal(call.ParentSpanId, whole.SpanId) || bytes.Equal(turn.SpanId, call.SpanId) {
		t.Errorf("%v\n%v\n%v", whole, turn, call)
	}
	if len(whole.Links) != 1 || !bytes.Equal(whole.Links[0].TraceId, parent.UUID[:]) {
		t.Error(whole.Links)
	}
	if whole.Status.Code != wire.Status_STATUS_CODE_ERROR || whole.Status.Message != "INTERNAL" || turn.Status != nil || call.Status == nil {
		t.Error(whole.Status, turn.Status, call.Status)
	}
	if want := "svc.tenant_id=" + owner.String() + " svc.run_id=" + run.String() + " svc.run.status=failed svc.agent_id=" + agent.String() + " error.type=INTERNAL "; show(whole.Attributes) != want {
		t.Errorf("got %s, want %s", show(whole.Attributes), want)
	}
	if want := "svc.tenant_id=" + owner.String() + " svc.run_id=" + run.String() + " svc.model=m svc.step.idx=1 svc.step.ok=true "; show(turn.Attributes) != want {
		t.Errorf("got %s, want %s", show(turn.Attributes), want)
	}
	about := show(r.batches[0].Resource.Attributes)
	if !strings.Contains(about, "service.name=agents ") || !strings.Contains(about, "service.version=1.2.3 ") || !strings.Contains(about, "service.instance.id=") {
		t.Error(about)
	}
	if got := r.header.Get("X-Collector-Key"); got != "k1" {
		t.Errorf("the header is %q", got)
	}
}

func TestRequestsContinueTheirTrace(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, tc := range []struct {
		name, field string
		told        bool
		parent      string
	}{
		{"none", "", true, ""},
		{"valid", "00-" + trace + "-" + parent + "-01", true, parent},
		{"not sampled", "00-" + trace + "-" + parent + "-00", false, ""},
		{"garbage", "00-" + trace, true, ""},
		{"no trace", "00-" + strings.Repeat("0", 32) + "-" + parent + "-01", true, ""},
		{"upper case", "00-" + strings.ToUpper(trace) + "-" + parent + "-01", true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReceiver(t)
			tracer := open(t, Config{Endpoint: r.URL + "/base"})
			tracer.Request(span.Request{Name: "getRun", Method: "GET", Route: "/v1/runs/{id}", Status: 503, ID: "r-1", Tenant: owner, Parent: []byte(tc.field), Began: began, Took: time.Second})
			stop(t, tracer, 10*time.Second)
			spans := r.spans()
			if len(spans) == 0 && !tc.told {
				return
			}
			if len(spans) != 1 || !tc.told {
				t.Fatal(spans)
			}
			s := spans[0]
			if hex.EncodeToString(s.ParentSpanId) != tc.parent || len(s.TraceId) != 16 || (hex.EncodeToString(s.TraceId) == trace) != (tc.parent != "") {
				t.Error(s)
			}
			if want := "http.request.method=GET http.response.status_code=503 svc.request_id=r-1 http.route=/v1/runs/{id} svc.tenant_id=" + owner.String() + " "; s.Name != "getRun" || show(s.Attributes) != want {
				t.Errorf("%s: got %s, want %s", s.Name, show(s.Attributes), want)
			}
			if s.Status.GetCode() != wire.Status_STATUS_CODE_ERROR {
				t.Error(s.Status)
			}
		})
	}
}

func TestAttemptsOfADeliveryShareATrace(t *testing.T) {
	r := newReceiver(t)
	tracer := open(t, Config{Endpoint: r.URL + "/base"})
	delivery := id.DeliveryID{UUID: id.NewAnywhere()}
	for n := range 2 {
		tracer.Delivery(span.Delivery{Tenant: owner, ID: delivery, Attempt: n + 1, Status: 500 - 300*n, OK: n == 1, Began: began, Ended: ended})
	}
	stop(t, tracer, 10*time.Second)
	spans := r.spans()
	if len(spans) != 2 || !bytes.Equal(spans[0].TraceId, delivery.UUID[:]) || !bytes.Equal(spans[1].TraceId, delivery.UUID[:]) || spans[0].Status == nil || spans[1].Status != nil {
		t.Fatal(spans)
	}
}

// A collector that hangs delays neither the caller nor Stop, and a full queue drops.
func TestACollectorThatHangsDelaysNothing(t *testing.T) {
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	tracer := open(t, Config{Endpoint: hangs.URL, Queue: 100, Every: time.Millisecond})
	before := testutil.ToFloat64(dropped) + testutil.ToFloat64(lost)
	const told = 5000
	start := time.Now()
	for range told {
		tracer.Step(span.Step{Tenant: owner, Run: id.RunID{UUID: id.NewAnywhere()}, Began: began, Ended: ended})
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("telling took %v", took)
	}
	start = time.Now()
	stop(t, tracer, 100*time.Millisecond)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if n := testutil.ToFloat64(dropped) + testutil.ToFloat64(lost) - before; n != told {
		t.Errorf("%v of %d spans are counted", n, told)
	}
}

// A collector that fails loses what it was sent, and gets what comes after it is back.
func TestACollectorThatComesBackGetsSpans(t *testing.T) {
	var logged bytes.Buffer
	r := newReceiver(t)
	r.answer(400)
	tracer := open(t, Config{Endpoint: r.URL + "/base", Every: time.Millisecond, Log: zerolog.New(&logged)})
	before := testutil.ToFloat64(lost)
	tracer.Run(span.Run{ID: id.RunID{UUID: id.NewAnywhere()}, Began: began, Ended: ended})
	testkit.Eventually(t, "the span is lost", func() bool { return testutil.ToFloat64(lost) == before+1 })
	r.answer(200)
	tracer.Run(span.Run{ID: id.RunID{UUID: id.NewAnywhere()}, Began: began, Ended: ended})
	testkit.Eventually(t, "the next span arrives", func() bool { return len(r.spans()) == 1 })
	stop(t, tracer, 10*time.Second)
	if n := strings.Count(logged.String(), "\n"); n != 2 {
		t.Errorf("%d lines: %s", n, logged.String())
	}
}
