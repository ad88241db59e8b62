// Package trace sends spans to an OpenTelemetry collector, by OTLP over HTTP: of requests, runs,
// model turns, tool calls and attempts of webhook deliveries. It is the one door to OpenTelemetry.
//
// The id of a run is the id of its trace, and the second half of it is the id of the run's span.
// So every node adds to the same trace without any state, and a run's trace is found by the run's
// id. The attempts of a delivery share a trace whose id is the delivery's. A request continues the
// trace of its traceparent field, or begins its own.
//
// A span is put into a bounded queue, from which one goroutine sends batches. Recording never
// blocks: when the queue is full, the span is dropped and counted. A batch that the collector does
// not take in time is lost and counted. Nothing else of the service waits for the collector. What is
// still queued when the node stops is sent within the time that Stop has.
//
// Without a collector Open returns nil. A nil *Tracer records nothing.
package trace
