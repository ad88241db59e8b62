// Package identity checks the tokens by which a tenant's back end says who a visitor
// is (service.md, Authentication, Embed; security.md, Embed): JWTs, signed by HS256
// with the identity secret of the embed key. It is the one door of jwx.
//
// A token is judged in this order, and the first that applies is its reason:
//
//	malformed      over 8 KiB; not three parts joined by dots; a part that is no strict
//	               base64url without padding; no payload; a header that is no JSON object,
//	               holds a member twice, says another typ than JWT, or names a key or an
//	               extension (jku, jwk, x5u, x5c, x5t, crit, b64, zip, enc)
//	alg            the header's alg is not exactly HS256, or is missing
//	signature      not signed with the secret; no secret
//	malformed      a payload that is no JSON
//	claims         a payload that is no object, or holds a member twice, at any depth;
//	               exp missing or no number
//	expired        exp is now or before (RFC 7519, 4.1.4: "on or after")
//	claims         any other claim that is not as below
//	exp_too_far    exp more than 24 h ahead
//	iat_in_future  iat more than 5 min ahead
//	not_yet_valid  nbf more than 60 s ahead
//
// Limits are inclusive: exactly 24 h, 5 min and 60 s ahead pass. Nothing of the payload is
// read before its signature is known to be right, and nothing in the header chooses a key or how
// to verify.
//
// The claims, of which the others are not looked at:
//
//	sub    required, a string of 1 to 255 characters
//	exp    required, a number
//	name   a string of up to 120 characters, or null, which says nothing
//	email  a string of up to 320 characters, or null, which says nothing
//	meta   an object with up to 16 members; an array meta.groups holds strings of 1 to 255
//	       characters. Only the token's 8 KiB bound how large it is
//	iat    a number
//	nbf    a number
//
// Characters are Unicode code points; sub, name, email and groups hold no control
// characters. The times are seconds since 1970, not negative, and may have fractions (RFC 7519,
// 2, NumericDate). Names match exactly, in case too.
//
// It keeps nothing and has no clock of its own.
package identity
