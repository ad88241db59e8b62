package scan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// decode builds a value from the parts that this package returns.
func decode(raw []byte) any {
	switch KindOf(raw) {
	case Object:
		out := map[string]any{}
		Members(raw, func(key string, v []byte) bool { out[key] = decode(v); return true })
		return out
	case List:
		out := []any{}
		Items(raw, func(v []byte) bool { out = append(out, decode(v)); return true })
		return out
	case String:
		return Text(raw)
	case Bool:
		return bytes.Equal(raw, []byte("true"))
	case Null:
		return nil
	}
	return json.Number(raw)
}

func agrees(t *testing.T, doc []byte) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var want any
	if err := dec.Decode(&want); err != nil {
		t.Fatal(err)
	}
	if got := decode(Trim(doc)); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nreads as  %#v\nshould be %#v", doc, got, want)
	}
	if all, ok := want.(map[string]any); ok {
		for key, v := range all {
			if got, ok := Member(doc, key); !ok || !reflect.DeepEqual(decode(got), v) {
				t.Fatalf("%s: member %q is %s, want %#v", doc, key, got, v)
			}
		}
	}
}

func TestScanAgreesWithEncodingJSON(t *testing.T) {
	for _, doc := range []string{
		`{}`, `[]`, ` null `, `true`, `false`, `-1.5e3`, `""`, `"a\"\\\u00e9\ud83d\ude00"`, `[1,2 , 3]`, ` { "a" : [ { } , [ ] ] , "b" : "}" } `,
		`{"a":1,"a":2}`, `{"\u0061":1}`, `{"":{"":[""]}}`, `[[[[]]],{"x":{"y":[1,{"z":null}]}}]`, "{\n\t\"a\"\r\n:\n1\n}", "\"\xff\"",
	} {
		agrees(t, []byte(doc))
	}
	if _, ok := Item([]byte(`[1,2]`), 2); ok {
		t.Error("there is no third item")
	}
	if v, ok := Item([]byte(`[1,[2]]`), 1); !ok || string(v) != "[2]" {
		t.Errorf("the second item is %s", v)
	}
}

func TestNestingTakesNoStack(t *testing.T) {
	doc := []byte(strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000))
	n := 0
	Items(doc, func(v []byte) bool { n += len(v); return true })
	if n != len(doc)-2 {
		t.Errorf("the only item has %d bytes", n)
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"a": [1, "b\n", {"c": null}], "a": true}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if json.Valid(doc) && len(doc) < 1<<16 {
			agrees(t, doc)
		}
	})
}
