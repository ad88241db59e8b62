package skill

import (
	"encoding/json"
	"testing"
)

// What a save stores is shown, and may be sent back as it is: no member of it is null that must not be.
func TestWhatIsSavedCanBeSavedAgain(t *testing.T) {
	for name, definition := range map[string]string{
		"the least": `{"start_url":"https://a.example/","target_hosts":["a.example"],"steps":[{"id":"s","kind":"click","target":{"selector":"#a"}}]}`,
		"a sign-in and parameters": `{"start_url":"https://a.example/","target_hosts":["a.example"],"params":[{"name":"p","type":"string","required":true}],
			"auth":{"kind":"credentials","secret_refs":["user"]},
			"steps":[{"id":"u","phase":"auth","kind":"type","target":{"text":"User"},"secret":true,"secret_ref":"user"},{"id":"t","kind":"type","target":{"selector":"#t"},"param":"p"},
			{"id":"w","kind":"wait","value":"1"},{"id":"c","kind":"click","target":{"selector":"#c"}}],"commit_step_id":"c",
			"assertions":[{"kind":"text_present","value":"Done"}],"result_fields":[{"name":"r","type":"string","selector":"#r"}],
			"compensation":[{"id":"k","kind":"click","target":{"selector":"#k"}}]}`,
	} {
		in := Input{Definition: json.RawMessage(definition), Auth: json.RawMessage(`{"mode":"none"}`), OwnerAttested: true}
		if name == "the least" {
			in.Policy = json.RawMessage(`{"approval":"none_for_idempotent_reads","risk_level":"low"}`)
		} else {
			in.Auth = json.RawMessage(`{"mode":"credentials","secrets":{"user":"a"}}`)
		}
		first, err := Parse(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if in.Definition, err = json.Marshal(first.Definition); err != nil {
			t.Fatal(err)
		}
		if in.Policy, err = json.Marshal(first.Policy); err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(in); err != nil {
			t.Errorf("%s: %v: %s", name, err, in.Definition)
		}
	}
}
