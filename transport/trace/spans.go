package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/span"
)

// maxName bounds the names of models and tools, in bytes.
const maxName = 256

// Request records a request. A request whose traceparent says that its trace is not sampled is not
// recorded.
func (t *Tracer) Request(r span.Request) {
	if t == nil {
		return
	}
	s := begin(r.Name, wire.Span_SPAN_KIND_SERVER, r.Began, r.Began.Add(r.Took))
	if parent := parse(r.Parent); parent.IsValid() {
		if !parent.IsSampled() {
			return
		}
		of, by := parent.TraceID(), parent.SpanID()
		s.TraceId, s.ParentSpanId = of[:], by[:]
	} else {
		s.TraceId = append(random(), random()...)
	}
	if r.Method == "" {
		r.Method = "_OTHER"
	}
	if s.Name == "" {
		s.Name = r.Method
	}
	s.Attributes = append(s.Attributes, text("http.request.method", r.Method), number("http.response.status_code", r.Status), text("svc.request_id", r.ID))
	if r.Route != "" {
		s.Attributes = append(s.Attributes, text("http.route", r.Route))
	}
	tenant(s, r.Tenant)
	if !r.Run.IsZero() {
		s.Attributes = append(s.Attributes, text("svc.run_id", r.Run.String()))
	}
	if r.Status >= 500 {
		failed(s, "")
	}
	t.add(s)
}

// parse returns the trace and span that a traceparent field names; not valid if it names none.
func parse(field []byte) trace.SpanContext {
	if len(field) == 0 {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": string(field)}))
}

// Run records a run that has ended.
func (t *Tracer) Run(r span.Run) {
	if t == nil {
		return
	}
	s := begin("run", wire.Span_SPAN_KIND_INTERNAL, r.Began, r.Ended)
	s.TraceId, s.SpanId = of(r.ID)
	if r.Parent != nil {
		parent, by := of(*r.Parent)
		s.Links = []*wire.Span_Link{{TraceId: parent, SpanId: by}}
	}
	tenant(s, r.Tenant)
	s.Attributes = append(s.Attributes, text("svc.run_id", r.ID.String()), text("svc.run.status", string(r.Status)))
	if !r.Agent.IsZero() {
		s.Attributes = append(s.Attributes, text("svc.agent_id", r.Agent.String()))
	}
	if !r.Workflow.IsZero() {
		s.Attributes = append(s.Attributes, text("svc.workflow_id", r.Workflow.String()))
	}
	if r.Code != "" {
		failed(s, string(r.Code))
	}
	t.add(s)
}

// of returns the ids of a run's trace and span. The second half of an id is never zero: it begins
// with the bits of its variant.
func of(run id.RunID) (trace, span []byte) { return run.UUID[:], run.UUID[8:] }

// Step records a model turn or a tool call, as a child of its run's span.
func (t *Tracer) Step(e span.Step) {
	if t == nil {
		return
	}
	name, key := "tool call", "svc.tool"
	if e.Kind == lifecycle.StepLLM {
		name, key = "model turn", "svc.model"
	}
	s := begin(name, wire.Span_SPAN_KIND_CLIENT, e.Began, e.Ended)
	s.TraceId, s.ParentSpanId = of(e.Run)
	tenant(s, e.Tenant)
	s.Attributes = append(s.Attributes, text("svc.run_id", e.Run.String()), text(key, e.Name), number("svc.step.idx", e.Idx), truth("svc.step.ok", e.OK))
	if !e.OK {
		failed(s, "")
	}
	t.add(s)
}

// Delivery records an attempt of a webhook delivery.
func (t *Tracer) Delivery(d span.Delivery) {
	if t == nil {
		return
	}
	s := begin("webhook attempt", wire.Span_SPAN_KIND_CLIENT, d.Began, d.Ended)
	s.TraceId = bytes.Clone(d.ID.UUID[:]) // d itself stays off the heap
	tenant(s, d.Tenant)
	s.Attributes = append(s.Attributes, text("svc.webhook_id", d.Webhook.String()), text("svc.delivery_id", d.ID.String()), number("svc.delivery.attempt", d.Attempt))
	if d.Status > 0 {
		s.Attributes = append(s.Attributes, number("http.response.status_code", d.Status))
	}
	if !d.OK {
		failed(s, "")
	}
	t.add(s)
}

// begin returns a span with an id of its own.
func begin(name string, kind wire.Span_SpanKind, began, ended time.Time) *wire.Span {
	if ended.Before(began) { // clocks of two nodes
		ended = began
	}
	return &wire.Span{Name: name, Kind: kind, SpanId: random(), Flags: uint32(trace.FlagsSampled),
		StartTimeUnixNano: uint64(began.UnixNano()), EndTimeUnixNano: uint64(ended.UnixNano())}
}

// random returns 8 bytes that are not all zero.
func random() []byte { return binary.BigEndian.AppendUint64(nil, rand.Uint64()|1) }

func failed(s *wire.Span, code string) {
	s.Status = &wire.Status{Code: wire.Status_STATUS_CODE_ERROR, Message: code}
	if code != "" {
		s.Attributes = append(s.Attributes, text("error.type", code))
	}
}

func tenant(s *wire.Span, t id.TenantID) {
	if !t.IsZero() {
		s.Attributes = append(s.Attributes, text("svc.tenant_id", t.String()))
	}
}

// text is an attribute. A batch with a text that is not UTF-8 could not be sent.
func text(key, value string) *common.KeyValue {
	value = strings.ToValidUTF8(value[:min(len(value), maxName)], "")
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func number(key string, value int) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(value)}}}
}

func truth(key string, value bool) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: value}}}
}
