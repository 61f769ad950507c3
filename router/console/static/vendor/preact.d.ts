export type VNode = object;
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function h(type: unknown, props: object | null, ...children: Child[]): VNode;
export function render(node: VNode, into: Element): void;
