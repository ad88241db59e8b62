// Package session makes and reads the two values that identify a browser to the embed API
// (service.md, Embed; open-parts.md, Embed). Neither is stored: each carries its claims,
// signed with HMAC-SHA256 under keys derived from the master keys, a different key for each
// of the two.
//
// A session token, svc_es_…, holds the embed key, origin and visitor of a session, and its
// expiry. It is read on every call. The reader must check that the key and the end user still
// exist, and that the call comes from that origin.
//
// A visitor value, svc_vi_…, identifies a browser as one visitor of one embed key. It does
// not expire: a browser that sends it back stays the same visitor.
//
// Both are a prefix and two parts of unpadded base64url joined by a dot: a payload that
// begins with its version, and a MAC. The MAC covers the text before the dot, prefix
// included. In a visitor value it also covers the tenant and the embed key, which are not in
// the text. So exactly one text is accepted for each value. Values signed under a previous
// master key are accepted too; without that key every session and every visitor starts anew.
package session
