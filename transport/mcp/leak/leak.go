// Package leak finds a secret in what others see, also where it is encoded. Tests use it.
package leak

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
)

// Forms returns the forms in which a secret is looked for.
func Forms(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
		strings.ReplaceAll(secret, "/", `\/`), strings.ReplaceAll(secret, "/", `\u002f`), strings.ReplaceAll(secret, "a", `\u0061`)}
	for before, skip := range []int{0, 2, 3} { // within the base64 of something longer
		padded := append(make([]byte, before), secret...)
		core := base64.RawStdEncoding.EncodeToString(padded)[skip : len(padded)*8/6]
		forms = append(forms, core, strings.NewReplacer("+", "-", "/", "_").Replace(core))
	}
	return forms
}

// Find returns the first form of the secret that text holds, or an empty string.
func Find(secret, text string) string {
	for _, f := range Forms(secret) {
		if strings.Contains(text, f) {
			return f
		}
	}
	return ""
}
