export default class uPlot {
  constructor(options: object, data: (number | null)[][], into: Element);
  static paths: { bars?: (options: object) => unknown; stepped?: (options: object) => unknown };
  setData(data: (number | null)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
