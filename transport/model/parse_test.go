package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"pgregory.net/rapid"

	schema "agentsvc/schemas/model"
)

func events(s string, buffer int) (list []string, err error) {
	r := sseReader{br: bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(s)), buffer)}
	for {
		d, err := r.next()
		if err != nil {
			return list, err
		}
		list = append(list, string(d))
	}
}

func TestEvents(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"data with and without a space", "data: a\n\ndata:b\n\n", []string{"a", "b"}},
		{"only one space goes", "data:  a\n\n", []string{" a"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"several lines are one event", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"comments, names and ids are passed over", ": hi\nevent: x\nid: 1\nretry: 5\ndata: a\n\n: bye\n\n", []string{"a"}},
		{"an empty datum is an event", "data\n\ndata:\n\n", []string{"", ""}},
		{"no datum is none", "event: x\n\n\n\n", nil},
		{"byte order mark", "\uFEFFdata: a\n\n", []string{"a"}},
		{"the end without an empty line", "data: a\n\ndata: b", []string{"a", "b"}},
		{"a line longer than the buffer", "data: " + long + "\n\ndata: b\n\n", []string{long, "b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := events(c.in, 64)
			if err != io.EOF || strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
				t.Fatalf("%.200q, %v", got, err)
			}
		})
	}
	for name, in := range map[string]string{
		"an endless line":    "data: " + strings.Repeat("x", maxLine+10),
		"an endless event":   strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", maxLine/1000+10),
		"an endless comment": ":" + strings.Repeat("x", maxLine+10) + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := sseReader{br: bufio.NewReaderSize(strings.NewReader(in), 4096)}
			if _, err := r.next(); !errors.Is(err, errLineTooLong) {
				t.Fatal(err)
			}
		})
	}
}

// FuzzStream: for any stream, each client ends with a Result or an error, the sink received
// exactly the Result's text, and all of it can be stored.
func FuzzStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\ud83d\",\"reasoning\":\"b\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\\ude00\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
	f.Add("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"x\",\"function\":{\"name\":\"a\",\"arguments\":\"{\\\"a\\\":\"}},{\"index\":0,\"id\":\"y\",\"function\":{\"arguments\":{}}}]},\"finish_reason\":\"tool_calls\"}]}\n\n")
	f.Add("data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"\xf0\x9f\"}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n")
	f.Add("data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":{\"x\":1}}}\n\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n")
	f.Add("data: {\"error\":\"no\"}\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		blocks, index := anthropicBlocks{}, openAIIndex{}
		for _, on := range []event{blocks.event, index.event} {
			var h heard
			tr := &turn{sink: &h, req: ask("x")}
			r := sseReader{br: bufio.NewReaderSize(strings.NewReader(s), 64)}
			for {
				d, err := r.next()
				if err != nil {
					break
				}
				if done, err := on(tr, d); err != nil || done {
					break
				}
			}
			res := tr.result()
			if res.Text != h.text.String() || res.ThinkingText() != h.thinking.String() {
				t.Fatalf("%+v, heard %q and %q", res, h.text.String(), h.thinking.String())
			}
			b, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{res.Text, res.ThinkingText(), string(b)} {
				if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
					t.Fatalf("%q", s)
				}
			}
			if tr.size > 0 && !tr.begun {
				t.Fatal("said without a first token")
			}
		}
	})
}

// FuzzWalk compares the walk with encoding/json.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{`{"a":"b","c":[1,-2,{"d":null}],"e":{"f":"\u00e9\ud83d\ude00\n"}}`, `["\"\\\/",true,1e5,[],{}]`, `"\ud800"`, ` { "a" : [ ] , "b" : "" } `, `12`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !json.Valid([]byte(s)) || !utf8.ValidString(s) || len(s) > 1000 || strings.Count(s, "[")+strings.Count(s, "{") > 100 {
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			return
		}
		w := walk{b: []byte(s)}
		got := build(&w)
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(got)
		if !bytes.Equal(a, b) {
			t.Fatalf("%s reads as %s, want %s", s, b, a)
		}
		skipped := walk{b: []byte(s)}
		if skipped.skip(); skipped.peek() != 0 {
			t.Fatalf("skip stopped at %d of %q", skipped.i, s)
		}
	})
}

func build(w *walk) any {
	switch w.peek() {
	case '{':
		w.object()
		m := map[string]any{}
		for k, ok := w.key(); ok; k, ok = w.key() {
			name := settle(k)
			m[name] = build(w)
		}
		return m
	case '[':
		w.array()
		l := []any{}
		for w.elem() {
			l = append(l, build(w))
		}
		return l
	case '"':
		return settle(w.str())
	default:
		return json.RawMessage(w.raw())
	}
}

func settle(b []byte) string {
	var x text
	// U+0000 is dropped by text and kept by encoding/json.
	parts := bytes.Split(b, []byte{0})
	var out []string
	for _, p := range parts {
		out = append(out, x.add(p)+x.flush())
	}
	return strings.Join(out, "\x00")
}

// TestCutAnywhere: however a text is cut, by bytes or by the halves of an escaped
// surrogate pair, the pieces give the whole, and each piece is valid.
func TestCutAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.String().Draw(t, "whole")
		var x text
		var heard strings.Builder
		rest := []byte(whole)
		for len(rest) > 0 {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			got := x.add(rest[:n])
			if !utf8.ValidString(got) {
				t.Fatalf("%q", got)
			}
			heard.WriteString(got)
			rest = rest[n:]
		}
		heard.WriteString(x.flush())
		want := strings.ReplaceAll(whole, "\x00", "")
		if x.b.String() != want || heard.String() != want {
			t.Fatalf("%q became %q", whole, heard.String())
		}
	})
	for _, c := range []struct {
		name string
		in   []string
		want string
	}{
		{"an escaped pair in two events", []string{`"\ud83d"`, `"\ude00!"`}, "😀!"},
		{"an escaped pair in one event", []string{`"\ud83d\ude00"`}, "😀"},
		{"the first half alone", []string{`"a\ud83d"`, `"b"`}, "a\uFFFDb"},
		{"the first half twice", []string{`"\ud83d\ud83d\ude00"`}, "\uFFFD😀"},
		{"the second half alone", []string{`"\ude00a"`}, "\uFFFDa"},
		{"the first half at the end", []string{`"a\ud83d"`}, "a\uFFFD"},
		{"raw bytes cut", []string{"\"\xf0\x9f\"", "\"\x98\x80\""}, "😀"},
		{"raw bytes lost", []string{"\"\xf0\x9f\"", `"a"`}, "\uFFFD\uFFFDa"},
		{"no UTF-8 at all", []string{"\"\xff\xfe\""}, "\uFFFD\uFFFD"},
		{"U+0000", []string{`"a\u0000b"`}, "ab"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x text
			for _, s := range c.in {
				w := walk{b: []byte(s)}
				x.add(w.str())
			}
			x.flush()
			if got := x.b.String(); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestNames: what goes out fits both protocols and is unique, and comes back.
func TestNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfDistinct(rapid.StringMatching(`[a-c_.:\-é]{1,5}|[ab.]{60,70}`), func(s string) string { return s }).Draw(t, "names")
		q := ask("x", list...)
		n := newNames(q)
		seen := map[string]bool{}
		for _, name := range list {
			p := n.wire(name)
			if !plain(p) || seen[p] {
				t.Fatalf("%q becomes %q", name, p)
			}
			seen[p] = true
			if n.qualified(p) != name {
				t.Fatalf("%q becomes %q becomes %q", name, p, n.qualified(p))
			}
			if plain(name) && p != name {
				t.Fatalf("%q was changed", name)
			}
		}
	})
	q := ask("x", "orders.refund", "builtin:kb.search", "plain")
	q.Messages = append(q.Messages, schema.Message{Role: schema.Assistant, Calls: []schema.Call{{Name: "gone.tool"}}})
	n := newNames(q)
	for name, want := range map[string]string{"orders.refund": "orders_refund", "builtin:kb.search": "builtin_kb_search", "plain": "plain", "gone.tool": "gone_tool"} {
		if got := n.wire(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if n := newNames(ask("x", "plain")); n.in != nil || n.wire("plain") != "plain" || n.qualified("plain") != "plain" {
		t.Error("plain names cost a map")
	}
}

func TestOddDialects(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []string
		text string
		want []schema.Call
	}{
		{"all calls under index 0", []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{\"n\":1}"}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"x","arguments":"{\"n\":2}"}}]}}]}`}, "",
			[]schema.Call{{ID: "a", Name: "x", Args: json.RawMessage(`{"n":1}`)}, {ID: "b", Name: "x", Args: json.RawMessage(`{"n":2}`)}}},
		{"no index, arguments as an object", []string{`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":{"n":1},"name":"x"},"id":"a"}]}}]}`}, "",
			[]schema.Call{{ID: "a", Name: "x", Args: json.RawMessage(`{"n":1}`)}}},
		{"the id again in every piece", []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{\"n\""}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":":1}"}}]}}]}`}, "",
			[]schema.Call{{ID: "a", Name: "x", Args: json.RawMessage(`{"n":1}`)}}},
		{"calls interleaved", []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x"}},{"index":1,"id":"b","function":{"name":"y"}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"n\":2}"}},{"index":0,"function":{"arguments":"{\"n\":1}"}}]}}]}`}, "",
			[]schema.Call{{ID: "a", Name: "x", Args: json.RawMessage(`{"n":1}`)}, {ID: "b", Name: "y", Args: json.RawMessage(`{"n":2}`)}}},
		{"nulls everywhere", []string{`{"choices":[{"index":0,"delta":{"content":null,"tool_calls":null,"reasoning":null},"finish_reason":null}],"usage":null,"error":null}`, `{"choices":null}`}, "", nil},
		{"another choice is not ours", []string{`{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"yes"}}]}`}, "yes", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h heard
			tr, at := &turn{sink: &h, req: ask("x")}, openAIIndex{}
			for _, s := range c.in {
				if _, err := at.event(tr, []byte(s)); err != nil {
					t.Fatal(err)
				}
			}
			res := tr.result()
			a, _ := json.Marshal(res.Calls)
			b, _ := json.Marshal(c.want)
			if !bytes.Equal(a, b) || res.Text != c.text {
				t.Fatalf("%s %q", a, res.Text)
			}
		})
	}
}

func TestAnswersAreBounded(t *testing.T) {
	big := `{"choices":[{"delta":{"content":"` + strings.Repeat("x", 1000_000) + `"}}]}`
	tr, at := &turn{sink: &heard{}, req: ask("x")}, openAIIndex{}
	var err error
	for n := 0; err == nil && n < 20; n++ {
		_, err = at.event(tr, []byte(big))
	}
	if !errors.Is(err, errAnswerTooLong) {
		t.Fatal(err)
	}
	at, tr = openAIIndex{}, &turn{sink: &heard{}, req: ask("x")}
	if _, err := at.event(tr, []byte(`{"choices":[{"delta":{"tool_calls":[{"index":128,"id":"a"}]}}]}`)); !errors.Is(err, errAnswerTooLong) {
		t.Fatal(err)
	}
}

// A server of a tenant says how much it used. Sums of what it says must not overflow.
func TestCountsOfTokensAreBounded(t *testing.T) {
	const huge = "9223372036854775807"
	for _, c := range []struct {
		name, said string
		in, out    int64
	}{
		{"openai", `{"choices":[],"usage":{"prompt_tokens":` + huge + `,"completion_tokens":` + huge + `}}`, schema.MaxTurnTokens, schema.MaxTurnTokens},
		{"openai, below nothing", `{"choices":[],"usage":{"prompt_tokens":-` + huge + `,"completion_tokens":-1}}`, 0, 0},
		{"openai, the most", `{"choices":[],"usage":{"prompt_tokens":1000000000,"completion_tokens":999999999}}`, schema.MaxTurnTokens, schema.MaxTurnTokens - 1},
		{"anthropic", `{"type":"message_delta","usage":{"input_tokens":` + huge + `,"cache_read_input_tokens":` + huge + `,"cache_creation_input_tokens":` + huge + `,"output_tokens":` + huge + `}}`, schema.MaxTurnTokens, schema.MaxTurnTokens},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &turn{sink: &heard{}, req: ask("x")}
			on := (&openAIIndex{}).event
			if c.name == "anthropic" {
				on = (&anthropicBlocks{}).event
			}
			if _, err := on(tr, []byte(c.said)); err != nil {
				t.Fatal(err)
			}
			if r := tr.result(); r.TokensIn != c.in || r.TokensOut != c.out || r.Estimated {
				t.Fatalf("%+v", r)
			}
		})
	}
}

// What comes in many small pieces costs by its size, not by the square of their number.
func TestSmallPiecesAreCheap(t *testing.T) {
	const pieces, most = 20_000, 64 << 20
	big := strings.Repeat("s", 256<<10)
	delta := func(kind, field, text string) string {
		return `{"type":"content_block_delta","index":0,"delta":{"type":"` + kind + `","` + field + `":"` + text + `"}}`
	}
	for _, c := range []struct{ name, block, kind, field string }{
		{"text", `{"type":"text","text":""}`, "text_delta", "text"},
		{"thinking", `{"type":"thinking","thinking":""}`, "thinking_delta", "thinking"},
		{"signature", `{"type":"thinking","thinking":""}`, "signature_delta", "signature"},
		{"input", `{"type":"tool_use","id":"a","name":"b","input":{}}`, "input_json_delta", "partial_json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, blocks := &turn{sink: &heard{}, req: ask("x")}, &anthropicBlocks{}
			say := func(event string) {
				t.Helper()
				if _, err := blocks.event(tr, []byte(event)); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			say(`{"type":"content_block_start","index":0,"content_block":` + c.block + `}`)
			say(delta(c.kind, c.field, big))
			small := delta(c.kind, c.field, "x")
			for range pieces {
				say(small)
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > most {
				t.Errorf("%d MiB were allocated", n>>20)
			}
			if r := tr.result(); c.name == "signature" && len(r.Thinking[0].Signature) != len(big)+pieces {
				t.Errorf("%d bytes of signature", len(r.Thinking[0].Signature))
			}
		})
	}
}
