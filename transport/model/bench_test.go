package model

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	"agentsvc/transport/model/fake"
	"agentsvc/transport/model/simulated"
)

type deaf struct{}

func (deaf) Text(string)     {}
func (deaf) Thinking(string) {}

// BenchmarkOpenAIParse is what a delta costs once it has arrived.
func BenchmarkOpenAIParse(b *testing.B) {
	const deltas = 1000
	stream := strings.Repeat(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m-1","system_fingerprint":"fp","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`+"\n\n", deltas) + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	req := ask("x")
	br := bufio.NewReaderSize(nil, 16<<10)
	src := strings.NewReader("")
	b.ReportAllocs()
	for b.Loop() {
		src.Reset(stream)
		br.Reset(src)
		r := sseReader{br: br}
		t, at := &turn{sink: deaf{}, req: req}, openAIIndex{}
		for {
			d, err := r.next()
			if err == io.EOF {
				break
			}
			if done, err := at.event(t, d); done || err != nil {
				break
			}
		}
		t.result()
	}
	b.ReportMetric(float64(b.N)*deltas/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkOpenAIOverHTTP has the fake provider in the same process.
func BenchmarkOpenAIOverHTTP(b *testing.B) {
	words := make([]string, 200)
	for i := range words {
		words[i] = " word"
	}
	r := newRig(b, fake.Reply{Text: words})
	c, req := r.client(OpenAI), ask("x")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Stream(context.Background(), req, deaf{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(len(words))/b.Elapsed().Seconds(), "tokens/s")
}

func BenchmarkSimulated(b *testing.B) {
	for _, c := range []struct{ name, text string }{{"answer", "Where is my order?"}, {"tokens1000", "/tokens 1000"}, {"call", "/call orders.refund {\"id\":1}"}} {
		b.Run(c.name, func(b *testing.B) {
			req := ask(c.text)
			n := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				res, err := simulated.Client{}.Stream(context.Background(), req, deaf{})
				if err != nil {
					b.Fatal(err)
				}
				n += res.TokensOut
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
