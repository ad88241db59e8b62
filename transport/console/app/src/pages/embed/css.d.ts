// The chat widget's style sheet comes as text.
declare module "*.css" {
  const css: string;
  export default css;
}
