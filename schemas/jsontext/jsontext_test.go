package jsontext

import (
	"encoding/json"
	"testing"
)

func TestMarshal(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{"<a href='x'>&amp;</a>", `"<a href='x'>&amp;</a>"`},
		{"a line\n", `"a line\n"`},
		{"\u2028", `"\u2028"`},
		{nil, `null`},
		{json.RawMessage("{\n\"a\": \"<b>\"\n}\n"), `{"a":"<b>"}`},
		{struct {
			A string `json:"a"`
			B int    `json:"b,omitempty"`
		}{A: ">"}, `{"a":">"}`},
	} {
		if got, err := Marshal(c.v); err != nil || string(got) != c.want {
			t.Errorf("%#v is %s, want %s: %v", c.v, got, c.want, err)
		}
		if got := Must(c.v); string(got) != c.want {
			t.Errorf("%#v is %s, want %s", c.v, got, c.want)
		}
	}
}

func TestWhatHasNoForm(t *testing.T) {
	if got, err := Marshal(func() {}); err == nil || got != nil {
		t.Errorf("a function is %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("Must returned")
		}
	}()
	Must(json.RawMessage("{"))
}

func TestValues(t *testing.T) {
	for text, want := range map[string]int{`1`: 1, `{"a":1,"b":[1,2,{}]}`: 7, `"a,b{[\",,"`: 1, `{"\\":","}`: 2, ``: 1} {
		if got := Values([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}
