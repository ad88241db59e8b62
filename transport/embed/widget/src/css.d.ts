declare module "*.css" {
  /** The style sheet as text, minified by the build. */
  const css: string;
  export default css;
}
