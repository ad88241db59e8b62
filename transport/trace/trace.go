package trace

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"

	"agentsvc/schemas/id"
)

const (
	defaultQueue = 4096
	defaultEvery = 2 * time.Second
	// most is how many spans a batch has at most.
	most = 512
	// maxCause bounds what a log line shows of an error, which may hold the collector's answer.
	maxCause = 300
)

// Config holds the settings of a Tracer.
type Config struct {
	// Endpoint is the base URL of the collector: batches go to its path v1/traces. Empty: there
	// is none.
	Endpoint string
	Node     id.MemberID
	Version  string        // of the service
	Queue    int           // spans that wait at most; 0: 4096
	Every    time.Duration // how long a span waits for its batch to fill; 0: 2 s
	Log      zerolog.Logger
}

// Tracer records spans and sends them. All its methods may be called on nil, and then do nothing.
type Tracer struct {
	cfg      Config
	client   otlptrace.Client
	resource *resourcepb.Resource
	queue    chan *wire.Span

	sending  context.Context // ends with the time of Stop
	cancel   context.CancelFunc
	stopping chan struct{}
	done     chan struct{}
	failing  bool // of loop: the last batch was lost
}

// Open returns a Tracer that sends to the collector, nil if the configuration names none. Headers,
// time-out, compression and certificates are those of the library's variables
// OTEL_EXPORTER_OTLP_…; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the service's own
// attributes. Stop it when done.
func Open(ctx context.Context, cfg Config) (*Tracer, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	if cfg.Queue <= 0 {
		cfg.Queue = defaultQueue
	}
	if cfg.Every <= 0 {
		cfg.Every = defaultEvery
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "svc"),
		attribute.String("service.version", cfg.Version), attribute.String("service.instance.id", cfg.Node.String())), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	t := &Tracer{cfg: cfg, client: otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(cfg.Endpoint + "/v1/traces")), resource: &resourcepb.Resource{},
		queue: make(chan *wire.Span, cfg.Queue), stopping: make(chan struct{}), done: make(chan struct{})}
	for _, a := range about.Attributes() {
		t.resource.Attributes = append(t.resource.Attributes, text(string(a.Key), a.Value.AsString()))
	}
	if err := t.client.Start(ctx); err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	t.sending, t.cancel = context.WithCancel(context.Background())
	go t.loop()
	return t, nil
}

// Stop sends what is queued, until ctx ends. Spans that are recorded later are not sent. It is
// called once.
func (t *Tracer) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	defer context.AfterFunc(ctx, t.cancel)()
	close(t.stopping)
	<-t.done
	t.cancel()
	return t.client.Stop(context.WithoutCancel(ctx))
}

// add queues a span, or drops it.
func (t *Tracer) add(s *wire.Span) {
	select {
	case t.queue <- s:
	default:
		dropped.Inc()
	}
}

// loop sends what is queued: full batches at once, the others when Config.Every has passed.
func (t *Tracer) loop() {
	defer close(t.done)
	tick := time.NewTicker(t.cfg.Every)
	defer tick.Stop()
	batch := make([]*wire.Span, 0, most)
	for {
		select {
		case s := <-t.queue:
			if batch = append(batch, s); len(batch) == most {
				batch = t.send(batch)
			}
		case <-tick.C:
			batch = t.send(batch)
		case <-t.stopping:
			for len(t.queue) > 0 {
				if batch = append(batch, <-t.queue); len(batch) == most {
					batch = t.send(batch)
				}
			}
			t.send(batch)
			return
		}
	}
}

// send sends a batch and returns it empty. It logs when the collector begins to fail, and when it
// takes spans again.
func (t *Tracer) send(batch []*wire.Span) []*wire.Span {
	if len(batch) == 0 {
		return batch
	}
	err := t.client.UploadTraces(t.sending, []*wire.ResourceSpans{{Resource: t.resource,
		ScopeSpans: []*wire.ScopeSpans{{Scope: &common.InstrumentationScope{Name: "svc", Version: t.cfg.Version}, Spans: batch}}}})
	switch {
	case err != nil && !t.failing:
		cause := err.Error()
		t.cfg.Log.Warn().Str("cause", cause[:min(len(cause), maxCause)]).Msg("spans are lost: the collector does not take them")
	case err == nil && t.failing:
		t.cfg.Log.Info().Msg("the collector takes spans again")
	}
	if t.failing = err != nil; t.failing {
		lost.Add(float64(len(batch)))
	} else {
		sent.Add(float64(len(batch)))
	}
	clear(batch)
	return batch[:0]
}
